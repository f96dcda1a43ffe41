# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The C side of position_embedding: its arguments and the function of the instruction set in force."""

from libc.stdint cimport int32_t

from ftd.kernels._pool cimport OpFn

cdef extern from "position_embedding.h" namespace "ftd" nogil:
    cdef struct PositionEmbeddingArgs "ftd::PositionEmbeddingArgs":
        const float* x
        const float* table
        float* out
        int32_t width

cdef OpFn position_embedding_fn() noexcept nogil
