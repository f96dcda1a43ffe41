# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The C side of layer_norm: its arguments and the function of the instruction set in force."""

from libc.stdint cimport int32_t

from ftd.kernels._pool cimport OpFn

cdef extern from "layer_norm.h" namespace "ftd" nogil:
    cdef struct LayerNormArgs "ftd::LayerNormArgs":
        const float* x
        const float* weight
        const float* bias
        float* out
        int32_t width
        float eps
        int32_t rows

cdef OpFn layer_norm_fn() noexcept nogil
