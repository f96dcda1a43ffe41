# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""add on the CPU; see add_ref for the contract."""

import numpy as np

from ftd.kernels.add_ref import check

from libc.string cimport memset

from ftd.kernels._pool cimport Op, Pool, Step, current_isa, run_ops, ROWS_TOKENS

cdef extern from "add_run.h" namespace "ftd" nogil:
    OpFn add_select(int32_t isa)


cdef OpFn add_fn() noexcept nogil:
    return add_select(current_isa())


def add(x, y, scale=1.0, pool=None):
    """Return x + scale * y; see add_ref."""
    check(x, y)
    out = np.empty_like(x)
    cdef const float[:, ::1] x_td = x
    cdef const float[:, ::1] y_td = y
    cdef float[:, ::1] out_td = out
    cdef AddArgs args
    cdef Step step
    cdef Op op
    cdef Pool threads = pool
    args.x = &x_td[0, 0]
    args.y = &y_td[0, 0]
    args.out = &out_td[0, 0]
    args.scale = scale
    args.width = x_td.shape[1]
    args.rows = ROWS_TOKENS
    memset(&step, 0, sizeof(Step))
    step.num_tokens = x_td.shape[0]
    op.run = add_fn()
    op.args = &args
    with nogil:
        run_ops(threads, &op, 1, &step)
    return out
