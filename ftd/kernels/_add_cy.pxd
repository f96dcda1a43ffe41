# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The C side of add: its arguments and the function of the instruction set in force."""

from libc.stdint cimport int32_t

from ftd.kernels._pool cimport OpFn

cdef extern from "add.h" namespace "ftd" nogil:
    cdef struct AddArgs "ftd::AddArgs":
        const float* x
        const float* y
        float* out
        float scale
        int32_t width
        int32_t rows

cdef OpFn add_fn() noexcept nogil
