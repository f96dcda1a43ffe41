# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""latent_norm on the CPU; see latent_norm_ref for the contract."""

import numpy as np

from ftd.kernels.latent_norm_ref import check

from libc.string cimport memset

from ftd.kernels._pool cimport Op, Pool, Step, current_isa, run_ops

cdef extern from "latent_norm_run.h" namespace "ftd" nogil:
    OpFn latent_norm_select(int32_t isa)


cdef OpFn latent_norm_fn() noexcept nogil:
    return latent_norm_select(current_isa())


def latent_norm(x, weight, eps=1e-6, interleaved=False, pool=None):
    """Return each row's latent normalised, and its key; see latent_norm_ref."""
    check(x, weight, eps, interleaved)
    out = np.empty_like(x)
    if not x.size:
        return out
    cdef const float[:, ::1] x_td = x
    cdef const float[::1] weight_l = weight
    cdef float[:, ::1] out_td = out
    cdef LatentNormArgs args
    cdef Step step
    cdef Op op
    cdef Pool threads = pool
    args.x = &x_td[0, 0]
    args.weight = &weight_l[0]
    args.out = &out_td[0, 0]
    args.width = x_td.shape[1]
    args.latent = weight_l.shape[0]
    args.eps = eps
    args.interleaved = interleaved
    memset(&step, 0, sizeof(Step))
    step.num_tokens = x_td.shape[0]
    op.run = latent_norm_fn()
    op.args = &args
    with nogil:
        run_ops(threads, &op, 1, &step)
    return out
