# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""select_logit_rows on the CPU; see select_logit_rows_ref for the contract."""

import numpy as np

from ftd.kernels.select_logit_rows_ref import check

from libc.string cimport memset

from ftd.kernels._pool cimport Op, Pool, Step, current_isa, run_ops

cdef extern from "select_logit_rows_run.h" namespace "ftd" nogil:
    OpFn select_logit_rows_select(int32_t isa)


cdef OpFn select_logit_rows_fn() noexcept nogil:
    return select_logit_rows_select(current_isa())


def select_logit_rows(x, rows, pool=None):
    """Return the rows of ``x`` whose logits are wanted; see select_logit_rows_ref."""
    check(x, rows)
    out = np.empty((rows.shape[0], x.shape[1]), np.float32)
    cdef const float[:, ::1] x_td = x
    cdef const int32_t[::1] rows_n = rows
    cdef float[:, ::1] out_nd = out
    cdef SelectLogitRowsArgs args
    cdef Step step
    cdef Op op
    cdef Pool threads = pool
    args.x = &x_td[0, 0]
    args.out = &out_nd[0, 0]
    args.width = x_td.shape[1]
    memset(&step, 0, sizeof(Step))
    step.num_logits = rows_n.shape[0]
    step.logit_rows = &rows_n[0]
    op.run = select_logit_rows_fn()
    op.args = &args
    with nogil:
        run_ops(threads, &op, 1, &step)
    return out
