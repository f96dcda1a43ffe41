# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""layer_norm on the CPU; see layer_norm_ref for the contract."""

import numpy as np

from ftd.kernels.layer_norm_ref import check

from libc.string cimport memset

from ftd.kernels._pool cimport Op, Pool, Step, current_isa, run_ops, ROWS_TOKENS

cdef extern from "layer_norm_run.h" namespace "ftd" nogil:
    OpFn layer_norm_select(int32_t isa)


cdef OpFn layer_norm_fn() noexcept nogil:
    return layer_norm_select(current_isa())


def layer_norm(x, weight, bias, eps=1e-12, pool=None):
    """Return each row shifted and scaled to mean 0 and variance 1; see layer_norm_ref."""
    check(x, weight, bias, eps)
    out = np.empty_like(x)
    if not x.size:
        return out
    cdef const float[:, ::1] x_td = x
    cdef const float[::1] weight_d = weight
    cdef const float[::1] bias_d = bias
    cdef float[:, ::1] out_td = out
    cdef LayerNormArgs args
    cdef Step step
    cdef Op op
    cdef Pool threads = pool
    args.x = &x_td[0, 0]
    args.weight = &weight_d[0]
    args.bias = &bias_d[0]
    args.out = &out_td[0, 0]
    args.width = x_td.shape[1]
    args.eps = eps
    args.rows = ROWS_TOKENS
    memset(&step, 0, sizeof(Step))
    step.num_tokens = x_td.shape[0]
    op.run = layer_norm_fn()
    op.args = &args
    with nogil:
        run_ops(threads, &op, 1, &step)
    return out
