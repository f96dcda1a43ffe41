# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""embedding on the CPU; see embedding_ref for the contract."""

import numpy as np

from ftd.kernels.embedding_ref import check

from libc.string cimport memset

from ftd.kernels._dequantize_cy cimport fill_matrix
from ftd.kernels._pool cimport Op, Pool, Step, run_ops

cdef extern from "embedding_run.h" namespace "ftd" nogil:
    void embedding_op(const void*, const Step*, int32_t, int32_t) noexcept


cdef OpFn embedding_fn() noexcept nogil:
    return embedding_op


def embedding(ids, weight, scale=1.0, pool=None):
    """Return the dequantised rows of ``weight`` that ``ids`` name; see embedding_ref."""
    check(ids, weight)
    out = np.empty((ids.shape[0], weight.shape[1]), np.float32)
    cdef const int32_t[::1] ids_t = ids
    cdef float[:, ::1] out_td = out
    cdef EmbeddingArgs args
    cdef Step step
    cdef Op op
    cdef Pool threads = pool
    fill_matrix(weight, &args.weight)
    args.out = &out_td[0, 0]
    args.width = weight.shape[1]
    args.scale = scale
    memset(&step, 0, sizeof(Step))
    step.num_tokens = ids_t.shape[0]
    step.ids = &ids_t[0]
    op.run = embedding_fn()
    op.args = &args
    with nogil:
        run_ops(threads, &op, 1, &step)
    return out
