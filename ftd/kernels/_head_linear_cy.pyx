# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""head_linear on the CPU; see head_linear_ref for the contract."""

import numpy as np

from ftd.kernels.head_linear_ref import check

from libc.string cimport memset

from ftd.kernels._dequantize_cy cimport fill_matrix
from ftd.kernels._pool cimport Op, Pool, Step, current_isa, run_ops

cdef extern from "head_linear_run.h" namespace "ftd" nogil:
    OpFn head_linear_select(int32_t isa)


cdef OpFn head_linear_fn() noexcept nogil:
    return head_linear_select(current_isa())


def head_linear(x, weight, tail=0, interleaved=False, first=0, rows=0, transposed=False, pool=None):
    """Return each head's product with its own rows of weight, and its tail; see head_linear_ref."""
    used, wide, _ = check(x, weight, tail, interleaved, first, rows, transposed)
    out = np.empty((x.shape[0], x.shape[1], wide + tail), np.float32)
    if not x.shape[0]:
        return out
    parts = 1 if pool is None else pool.num_threads
    scratch = np.empty(parts * head_linear_scratch_floats(weight.shape[1]), np.float32)
    cdef const float[:, :, ::1] x_thk = x
    cdef float[:, :, ::1] out_thn = out
    cdef float[::1] floats = scratch
    cdef HeadLinearArgs args
    cdef Step step
    cdef Op op
    cdef Pool threads = pool
    fill_matrix(weight, &args.weight)
    args.x = &x_thk[0, 0, 0]
    args.out = &out_thn[0, 0, 0]
    args.scratch = &floats[0]
    args.heads = x_thk.shape[1]
    args.tail = tail
    args.interleaved = interleaved
    args.first = first
    args.rows = used
    args.transposed = transposed
    memset(&step, 0, sizeof(Step))
    step.num_tokens = x_thk.shape[0]
    op.run = head_linear_fn()
    op.args = &args
    with nogil:
        run_ops(threads, &op, 1, &step)
    return out
