# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""rms_norm on the CPU; see rms_norm_ref for the contract."""

import numpy as np

from ftd.kernels.rms_norm_ref import check

from libc.string cimport memset

from ftd.kernels._pool cimport Op, Pool, Step, current_isa, run_ops, ROWS_TOKENS

cdef extern from "rms_norm_run.h" namespace "ftd" nogil:
    OpFn rms_norm_select(int32_t isa)


cdef OpFn rms_norm_fn() noexcept nogil:
    return rms_norm_select(current_isa())


def rms_norm(x, weight, eps=1e-6, pool=None):
    """Return each row scaled to unit root-mean-square, then by ``weight``; see rms_norm_ref."""
    check(x, weight, eps)
    out = np.empty_like(x)
    cdef const float[:, ::1] x_td = x
    cdef const float[::1] weight_d = weight
    cdef float[:, ::1] out_td = out
    cdef RmsNormArgs args
    cdef Step step
    cdef Op op
    cdef Pool threads = pool
    args.x = &x_td[0, 0]
    args.weight = &weight_d[0]
    args.out = &out_td[0, 0]
    args.width = x_td.shape[1]
    args.eps = eps
    args.rows = ROWS_TOKENS
    args.heads = 1
    memset(&step, 0, sizeof(Step))
    step.num_tokens = x_td.shape[0]
    op.run = rms_norm_fn()
    op.args = &args
    with nogil:
        run_ops(threads, &op, 1, &step)
    return out
