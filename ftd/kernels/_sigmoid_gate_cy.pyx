# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""sigmoid_gate on the CPU; see sigmoid_gate_ref for the contract."""

import numpy as np

from ftd.kernels.sigmoid_gate_ref import check

from libc.string cimport memset

from ftd.kernels._pool cimport Op, Pool, Step, current_isa, run_ops, ROWS_TOKENS

cdef extern from "sigmoid_gate_run.h" namespace "ftd" nogil:
    OpFn sigmoid_gate_select(int32_t isa)


cdef OpFn sigmoid_gate_fn() noexcept nogil:
    return sigmoid_gate_select(current_isa())


def sigmoid_gate(x, gate, pool=None):
    """Return x * sigmoid(gate); see sigmoid_gate_ref."""
    check(x, gate)
    out = np.empty_like(x)
    cdef const float[:, ::1] x_tf = x
    cdef const float[:, ::1] gate_tf = gate
    cdef float[:, ::1] out_tf = out
    cdef SigmoidGateArgs args
    cdef Step step
    cdef Op op
    cdef Pool threads = pool
    args.x = &x_tf[0, 0]
    args.gate = &gate_tf[0, 0]
    args.out = &out_tf[0, 0]
    args.width = x_tf.shape[1]
    args.rows = ROWS_TOKENS
    memset(&step, 0, sizeof(Step))
    step.num_tokens = x_tf.shape[0]
    op.run = sigmoid_gate_fn()
    op.args = &args
    with nogil:
        run_ops(threads, &op, 1, &step)
    return out
