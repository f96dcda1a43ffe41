# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""swiglu on the CPU; see swiglu_ref for the contract."""

import numpy as np

from ftd.kernels.swiglu_ref import check

from libc.string cimport memset

from ftd.kernels._pool cimport Op, Pool, Step, current_isa, run_ops, ROWS_TOKENS

cdef extern from "swiglu_run.h" namespace "ftd" nogil:
    OpFn swiglu_select(int32_t isa)


cdef OpFn swiglu_fn() noexcept nogil:
    return swiglu_select(current_isa())


def swiglu(gate, up, pool=None):
    """Return silu(gate) * up; see swiglu_ref."""
    check(gate, up)
    out = np.empty_like(gate)
    cdef const float[:, ::1] gate_tf = gate
    cdef const float[:, ::1] up_tf = up
    cdef float[:, ::1] out_tf = out
    cdef SwigluArgs args
    cdef Step step
    cdef Op op
    cdef Pool threads = pool
    args.gate = &gate_tf[0, 0]
    args.up = &up_tf[0, 0]
    args.out = &out_tf[0, 0]
    args.width = gate_tf.shape[1]
    args.rows = ROWS_TOKENS
    memset(&step, 0, sizeof(Step))
    step.num_tokens = gate_tf.shape[0]
    op.run = swiglu_fn()
    op.args = &args
    with nogil:
        run_ops(threads, &op, 1, &step)
    return out
