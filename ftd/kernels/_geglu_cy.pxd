# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The C side of geglu: its arguments and the function of the instruction set in force."""

from libc.stdint cimport int32_t

from ftd.kernels._pool cimport OpFn

cdef extern from "geglu.h" namespace "ftd" nogil:
    cdef struct GegluArgs "ftd::GegluArgs":
        const float* gate
        const float* up
        float* out
        int32_t width
        int32_t rows

cdef OpFn geglu_fn() noexcept nogil
