# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The C side of latent_store: its arguments and the function of the instruction set in force."""

from libc.stdint cimport int32_t

from ftd.kernels._pool cimport OpFn

cdef extern from "latent_store.h" namespace "ftd" nogil:
    cdef struct LatentStoreArgs "ftd::LatentStoreArgs":
        const float* x
        void* pages
        int32_t channels
        int32_t page_type

cdef OpFn latent_store_fn() noexcept nogil

# The address of pages of latents and their PageType.
cdef int fill_latent_pages(object pages, void** at, int32_t* page_type) except -1
