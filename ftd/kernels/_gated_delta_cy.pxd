# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The C side of gated_delta: its arguments and the function of the instruction set in force."""

from libc.stdint cimport int32_t

from ftd.kernels._pool cimport OpFn

cdef extern from "gated_delta.h" namespace "ftd" nogil:
    cdef struct GatedDeltaArgs "ftd::GatedDeltaArgs":
        const float* qkv
        const float* a
        const float* b
        const float* decay
        const float* bias
        float* out
        float* state
        int32_t key_heads
        int32_t value_heads
        int32_t key_channels
        int32_t value_channels
        int32_t tiled

cdef OpFn gated_delta_fn() noexcept nogil
