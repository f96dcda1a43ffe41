# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The C side of attention: its arguments and the function of the instruction set in force."""

from libc.stdint cimport int32_t, int64_t

from ftd.kernels._pool cimport OpFn

cdef extern from "attention.h" namespace "ftd" nogil:
    cdef struct AttentionArgs "ftd::AttentionArgs":
        const float* q
        float* out
        const void* k_pages
        const void* v_pages
        const float* sinks
        int32_t heads
        int32_t groups
        int32_t channels
        int32_t page_type
        int32_t window
        int32_t bidirectional
        float scale
        void* workspace
        int32_t max_sequences
        int32_t max_keys

    int64_t attention_workspace_bytes "ftd::attention_workspace_bytes"(
        int32_t heads, int32_t groups, int32_t channels, int32_t max_keys, int32_t max_sequences, int32_t num_threads
    )

cdef OpFn attention_fn() noexcept nogil
