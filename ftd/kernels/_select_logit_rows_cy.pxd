# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The C side of select_logit_rows: its arguments and the function of the instruction set in force."""

from libc.stdint cimport int32_t

from ftd.kernels._pool cimport OpFn

cdef extern from "select_logit_rows.h" namespace "ftd" nogil:
    cdef struct SelectLogitRowsArgs "ftd::SelectLogitRowsArgs":
        const float* x
        float* out
        int32_t width

cdef OpFn select_logit_rows_fn() noexcept nogil
