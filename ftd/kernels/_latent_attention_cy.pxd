# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The C side of latent_attention: its arguments and the function of the instruction set in force."""

from libc.stdint cimport int32_t, int64_t, uint64_t

from ftd.kernels._pool cimport OpFn

cdef extern from "latent_attention.h" namespace "ftd" nogil:
    cdef struct LatentAttentionArgs "ftd::LatentAttentionArgs":
        const float* q
        float* out
        const void* pages
        float* scratch
        int32_t heads
        int32_t channels
        int32_t latent
        int32_t page_type
        float scale
        const uint64_t* selected
        int32_t words

    int64_t latent_scratch_floats "ftd::latent_scratch_floats"(int32_t channels, int32_t latent)

cdef OpFn latent_attention_fn() noexcept nogil
