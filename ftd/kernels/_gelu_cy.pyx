# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""gelu on the CPU; see gelu_ref for the contract."""

import numpy as np

from ftd.kernels.gelu_ref import check

from libc.string cimport memset

from ftd.kernels._pool cimport Op, Pool, Step, current_isa, run_ops, ROWS_TOKENS

cdef extern from "gelu_run.h" namespace "ftd" nogil:
    OpFn gelu_select(int32_t isa)


cdef OpFn gelu_fn() noexcept nogil:
    return gelu_select(current_isa())


def gelu(x, pool=None):
    """Return x times the probability that a normal variable is below it; see gelu_ref."""
    check(x)
    out = np.empty_like(x)
    if not x.size:
        return out
    cdef const float[:, ::1] x_tf = x
    cdef float[:, ::1] out_tf = out
    cdef GeluArgs args
    cdef Step step
    cdef Op op
    cdef Pool threads = pool
    args.x = &x_tf[0, 0]
    args.out = &out_tf[0, 0]
    args.width = x_tf.shape[1]
    args.rows = ROWS_TOKENS
    memset(&step, 0, sizeof(Step))
    step.num_tokens = x_tf.shape[0]
    op.run = gelu_fn()
    op.args = &args
    with nogil:
        run_ops(threads, &op, 1, &step)
    return out
