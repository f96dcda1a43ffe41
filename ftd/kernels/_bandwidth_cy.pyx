# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""One timed pass of plain reads over a buffer."""

import time

import numpy as np

from libc.stdint cimport int64_t, uint64_t, int32_t
from libc.string cimport memset

from ftd.kernels._pool cimport Op, Pool, Step, run_ops

cdef extern from "bandwidth_run.h" namespace "ftd" nogil:
    cdef struct ReadArgs "ftd::ReadArgs":
        const uint64_t* data
        int64_t count
        uint64_t* sums

    void read_op(const void*, const Step*, int32_t, int32_t) noexcept


def read_all(const uint64_t[::1] data not None, pool=None):
    """Return the xor of data and the nanoseconds that reading it took."""
    cdef ReadArgs args
    cdef Step step
    cdef Op op
    cdef Pool threads = pool
    sums = np.zeros(8 * (1 if pool is None else pool.num_threads), np.uint64)
    cdef uint64_t[::1] sums_view = sums
    if data.shape[0] == 0:
        return 0, 0
    args.data = &data[0]
    args.count = data.shape[0]
    args.sums = &sums_view[0]
    memset(&step, 0, sizeof(Step))
    op.run = read_op
    op.args = &args
    start = time.perf_counter_ns()
    with nogil:
        run_ops(threads, &op, 1, &step)
    elapsed = time.perf_counter_ns() - start
    return int(np.bitwise_xor.reduce(sums)), elapsed
