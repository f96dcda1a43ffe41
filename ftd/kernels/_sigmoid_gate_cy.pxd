# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The C side of sigmoid_gate: its arguments and the function of the instruction set in force."""

from libc.stdint cimport int32_t

from ftd.kernels._pool cimport OpFn

cdef extern from "sigmoid_gate.h" namespace "ftd" nogil:
    cdef struct SigmoidGateArgs "ftd::SigmoidGateArgs":
        const float* x
        const float* gate
        float* out
        int32_t width
        int32_t rows

cdef OpFn sigmoid_gate_fn() noexcept nogil
