# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The C side of embedding: its arguments and the function of the instruction set in force."""

from libc.stdint cimport int32_t

from ftd.kernels._dequantize_cy cimport Matrix

from ftd.kernels._pool cimport OpFn

cdef extern from "embedding.h" namespace "ftd" nogil:
    cdef struct EmbeddingArgs "ftd::EmbeddingArgs":
        Matrix weight
        float* out
        int32_t width
        float scale

cdef OpFn embedding_fn() noexcept nogil
