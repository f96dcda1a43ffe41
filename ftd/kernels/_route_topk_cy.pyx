# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""route_topk on the CPU; see route_topk_ref for the contract."""

import numpy as np

from ftd.kernels.route_topk_ref import check

from libc.string cimport memset

from ftd.kernels._pool cimport Op, Pool, Step, run_ops

cdef extern from "route_topk_run.h" namespace "ftd" nogil:
    void route_topk_op(const void*, const Step*, int32_t, int32_t) noexcept


cdef OpFn route_topk_fn() noexcept nogil:
    return route_topk_op


def route_topk(
    logits, num_chosen, scoring="softmax", renormalise=True, scale=1.0, bias=None, num_groups=1, top_groups=1,
    group_top=2, pool=None,
):
    """Return (ids, weights) of the experts of each token; see route_topk_ref."""
    check(logits, num_chosen, scoring, bias, num_groups, top_groups, group_top)
    ids = np.empty((logits.shape[0], num_chosen), np.int32)
    weights = np.empty((logits.shape[0], num_chosen), np.float32)
    if logits.shape[0] == 0:
        return ids, weights
    cdef const float[:, ::1] logits_te = np.ascontiguousarray(logits)
    cdef const float[::1] bias_e
    cdef int32_t[:, ::1] ids_tk = ids
    cdef float[:, ::1] weights_tk = weights
    cdef Pool threads = pool
    cdef RouteTopkArgs args
    cdef Step step
    cdef Op op
    cdef float[::1] work = np.empty((1 if pool is None else threads.num_threads) * 2 * logits.shape[1], np.float32)
    memset(&args, 0, sizeof(RouteTopkArgs))
    args.logits = &logits_te[0, 0]
    if bias is not None:
        bias_e = np.ascontiguousarray(bias)
        args.bias = &bias_e[0]
    args.ids = &ids_tk[0, 0]
    args.weights = &weights_tk[0, 0]
    args.work = &work[0]
    args.num_experts = logits_te.shape[1]
    args.num_chosen = num_chosen
    args.sigmoid = scoring == "sigmoid"
    args.renormalise = renormalise
    args.num_groups = num_groups
    args.top_groups = top_groups
    args.group_top = group_top
    args.scale = scale
    memset(&step, 0, sizeof(Step))
    step.num_tokens = logits_te.shape[0]
    op.run = route_topk_op
    op.args = &args
    with nogil:
        run_ops(threads, &op, 1, &step)
    return ids, weights
