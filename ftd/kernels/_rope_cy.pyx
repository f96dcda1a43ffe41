# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""rope on the CPU; see rope_ref for the contract."""

import numpy as np

from ftd.kernels.rope_ref import check

from libc.string cimport memset

from ftd.kernels._pool cimport Op, Pool, Step, current_isa, run_ops

cdef extern from "rope_run.h" namespace "ftd" nogil:
    OpFn rope_select(int32_t isa)
    OpFn rope_table_select(int32_t isa)


cdef OpFn rope_fn() noexcept nogil:
    return rope_select(current_isa())


cdef OpFn rope_table_fn() noexcept nogil:
    return rope_table_select(current_isa())


def rope(x, positions, inv_freq, scale=1.0, pool=None):
    """Return ``x`` with its channel pairs rotated by position; see rope_ref."""
    check(x, positions, inv_freq, scale)
    out = np.empty_like(x)
    table = np.empty((x.shape[0], 2 * inv_freq.shape[0]), np.float32)
    cdef const float[:, :, ::1] x_thc = x
    cdef const int32_t[::1] positions_t = positions
    cdef const float[::1] inv_freq_r = inv_freq
    cdef float[:, ::1] table_tr = table
    cdef float[:, :, ::1] out_thc = out
    cdef RopeTableArgs table_args
    cdef RopeArgs args
    cdef Step step
    cdef Op ops[2]
    cdef Pool threads = pool
    table_args.inv_freq = &inv_freq_r[0]
    table_args.table = &table_tr[0, 0]
    table_args.half = inv_freq_r.shape[0]
    table_args.scale = scale
    args.x = &x_thc[0, 0, 0]
    args.out = &out_thc[0, 0, 0]
    args.table = table_args.table
    args.heads = x_thc.shape[1]
    args.channels = x_thc.shape[2]
    args.half = table_args.half
    memset(&step, 0, sizeof(Step))
    step.num_tokens = x_thc.shape[0]
    step.positions = &positions_t[0]
    ops[0].run = rope_table_fn()
    ops[0].args = &table_args
    ops[1].run = rope_fn()
    ops[1].args = &args
    with nogil:
        run_ops(threads, ops, 2, &step)
    return out
