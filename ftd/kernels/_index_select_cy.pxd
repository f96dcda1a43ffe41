# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The C side of index_select: its arguments and the function of the instruction set in force."""

from libc.stdint cimport int32_t, int64_t, uint64_t

from ftd.kernels._pool cimport OpFn

cdef extern from "index_select.h" namespace "ftd" nogil:
    cdef struct IndexSelectArgs "ftd::IndexSelectArgs":
        const float* q
        const float* weights
        const void* pages
        uint64_t* selected
        float* scratch
        int32_t heads
        int32_t channels
        int32_t page_type
        int32_t count
        int32_t words

    int64_t index_scratch_floats "ftd::index_scratch_floats"(int32_t heads, int32_t channels, int32_t words)

cdef OpFn index_select_fn() noexcept nogil
