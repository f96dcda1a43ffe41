# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The C side of kv_store: its arguments and the function of the instruction set in force."""

from libc.stdint cimport int32_t

from ftd.kernels._pool cimport OpFn

cdef extern from "kv_store.h" namespace "ftd" nogil:
    cdef struct KvStoreArgs "ftd::KvStoreArgs":
        const float* k
        const float* v
        void* k_pages
        void* v_pages
        int32_t groups
        int32_t channels
        int32_t page_type

    int32_t PAGES_F32 "ftd::PAGES_F32"
    int32_t PAGES_F16 "ftd::PAGES_F16"

# Takes the pointers and the type of a checked pair of page arrays, which the caller keeps alive.
cdef int fill_pages(object k_pages, object v_pages, void** k, void** v, int32_t* page_type) except -1

cdef OpFn kv_store_fn() noexcept nogil
