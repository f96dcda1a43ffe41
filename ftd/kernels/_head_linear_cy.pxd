# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The C side of head_linear: its arguments and the function of the instruction set in force."""

from libc.stdint cimport int32_t, int64_t

from ftd.kernels._dequantize_cy cimport Matrix
from ftd.kernels._pool cimport OpFn

cdef extern from "head_linear.h" namespace "ftd" nogil:
    cdef struct HeadLinearArgs "ftd::HeadLinearArgs":
        const float* x
        float* out
        Matrix weight
        float* scratch
        int32_t heads
        int32_t tail
        int32_t interleaved
        int32_t first
        int32_t rows
        int32_t transposed

    int64_t head_linear_scratch_floats "ftd::head_linear_scratch_floats"(int64_t m)

cdef OpFn head_linear_fn() noexcept nogil
