# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The C side of swiglu: its arguments and the function of the instruction set in force."""

from libc.stdint cimport int32_t

from ftd.kernels._pool cimport OpFn

cdef extern from "swiglu.h" namespace "ftd" nogil:
    cdef struct SwigluArgs "ftd::SwigluArgs":
        const float* gate
        const float* up
        float* out
        int32_t width
        int32_t rows

cdef OpFn swiglu_fn() noexcept nogil
