# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""geglu on the CPU; see geglu_ref for the contract."""

import numpy as np

from ftd.kernels.geglu_ref import check

from libc.string cimport memset

from ftd.kernels._pool cimport Op, Pool, Step, current_isa, run_ops, ROWS_TOKENS

cdef extern from "geglu_run.h" namespace "ftd" nogil:
    OpFn geglu_select(int32_t isa)


cdef OpFn geglu_fn() noexcept nogil:
    return geglu_select(current_isa())


def geglu(gate, up, pool=None):
    """Return gelu(gate) * up; see geglu_ref."""
    check(gate, up)
    out = np.empty_like(gate)
    cdef const float[:, ::1] gate_tf = gate
    cdef const float[:, ::1] up_tf = up
    cdef float[:, ::1] out_tf = out
    cdef GegluArgs args
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
    op.run = geglu_fn()
    op.args = &args
    with nogil:
        run_ops(threads, &op, 1, &step)
    return out
