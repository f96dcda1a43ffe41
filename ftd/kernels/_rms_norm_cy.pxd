# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The C side of rms_norm: its arguments and the function of the instruction set in force."""

from libc.stdint cimport int32_t

from ftd.kernels._pool cimport OpFn

cdef extern from "rms_norm.h" namespace "ftd" nogil:
    cdef struct RmsNormArgs "ftd::RmsNormArgs":
        const float* x
        const float* weight
        float* out
        int32_t width
        float eps
        int32_t rows
        int32_t heads

cdef OpFn rms_norm_fn() noexcept nogil
