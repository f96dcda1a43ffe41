# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The C side of causal_conv: its arguments and the function of the instruction set in force."""

from libc.stdint cimport int32_t, int64_t

from ftd.kernels._pool cimport OpFn

cdef extern from "causal_conv.h" namespace "ftd" nogil:
    cdef struct CausalConvArgs "ftd::CausalConvArgs":
        const float* x
        const float* weight
        float* out
        float* state
        int64_t channels
        int32_t taps

cdef OpFn causal_conv_fn() noexcept nogil
