# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The C side of gelu: its arguments and the function of the instruction set in force."""

from libc.stdint cimport int32_t

from ftd.kernels._pool cimport OpFn

cdef extern from "gelu.h" namespace "ftd" nogil:
    cdef struct GeluArgs "ftd::GeluArgs":
        const float* x
        float* out
        int32_t width
        int32_t rows

cdef OpFn gelu_fn() noexcept nogil
