# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The C side of quantize_k: its arguments."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t

cdef extern from "quantize_k.h" namespace "ftd" nogil:
    cdef struct QuantizeKArgs "ftd::QuantizeKArgs":
        const float* x
        int64_t num_blocks
        int32_t bits
        uint8_t* codes
        uint8_t* high
        uint8_t* scales
        uint8_t* mins
        uint16_t* d
        uint16_t* dmin
