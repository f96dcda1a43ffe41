# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""position_embedding on the CPU; see position_embedding_ref for the contract."""

import numpy as np

from ftd.kernels.position_embedding_ref import check

from libc.string cimport memset

from ftd.kernels._pool cimport Op, Pool, Step, current_isa, run_ops

cdef extern from "position_embedding_run.h" namespace "ftd" nogil:
    OpFn position_embedding_select(int32_t isa)


cdef OpFn position_embedding_fn() noexcept nogil:
    return position_embedding_select(current_isa())


def position_embedding(x, positions, table, pool=None):
    """Return x plus the row of table that each position names; see position_embedding_ref."""
    check(x, positions, table)
    out = np.empty_like(x)
    if not x.size:
        return out
    cdef const float[:, ::1] x_td = x
    cdef const int32_t[::1] positions_t = positions
    cdef const float[:, ::1] table_sd = table
    cdef float[:, ::1] out_td = out
    cdef PositionEmbeddingArgs args
    cdef Step step
    cdef Op op
    cdef Pool threads = pool
    args.x = &x_td[0, 0]
    args.table = &table_sd[0, 0]
    args.out = &out_td[0, 0]
    args.width = x_td.shape[1]
    memset(&step, 0, sizeof(Step))
    step.num_tokens = x_td.shape[0]
    step.positions = &positions_t[0]
    op.run = position_embedding_fn()
    op.args = &args
    with nogil:
        run_ops(threads, &op, 1, &step)
    return out
