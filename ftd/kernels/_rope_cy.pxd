# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The C side of rope: its arguments and the function of the instruction set in force."""

from libc.stdint cimport int32_t

from ftd.kernels._pool cimport OpFn

cdef extern from "rope.h" namespace "ftd" nogil:
    cdef struct RopeArgs "ftd::RopeArgs":
        const float* x
        float* out
        const float* table
        int32_t heads
        int32_t channels
        int32_t half

    cdef struct RopeTableArgs "ftd::RopeTableArgs":
        const float* inv_freq
        float* table
        int32_t half
        float scale

cdef OpFn rope_fn() noexcept nogil
cdef OpFn rope_table_fn() noexcept nogil
