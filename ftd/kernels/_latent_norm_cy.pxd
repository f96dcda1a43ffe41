# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The C side of latent_norm: its arguments and the function of the instruction set in force."""

from libc.stdint cimport int32_t

from ftd.kernels._pool cimport OpFn

cdef extern from "latent_norm.h" namespace "ftd" nogil:
    cdef struct LatentNormArgs "ftd::LatentNormArgs":
        const float* x
        const float* weight
        float* out
        int32_t width
        int32_t latent
        float eps
        int32_t interleaved

cdef OpFn latent_norm_fn() noexcept nogil
