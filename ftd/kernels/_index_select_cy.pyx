# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""index_select on the CPU; see index_select_ref for the contract."""

import numpy as np

from ftd.kernels.index_select_ref import WORD, check

from libc.string cimport memset

from ftd.kernels._latent_store_cy cimport fill_latent_pages
from ftd.kernels._pool cimport Op, Pool, Step, current_isa, run_ops

cdef extern from "index_select_run.h" namespace "ftd" nogil:
    OpFn index_select_select(int32_t isa)


cdef OpFn index_select_fn() noexcept nogil:
    return index_select_select(current_isa())


def index_select(q, weights, pages, page_table, q_start, kv_len, positions, count, pool=None):
    """Return the selected keys of each token as bits; see index_select_ref."""
    check(q, weights, pages, page_table, q_start, kv_len, positions, count)
    words = -(-page_table.shape[1] * pages.shape[1] // WORD)
    out = np.zeros((q.shape[0], words), np.uint64)
    if not q.size:
        return out
    parts = 1 if pool is None else pool.num_threads
    scratch = np.empty(parts * index_scratch_floats(q.shape[1], q.shape[2], words), np.float32)
    cdef const float[:, :, ::1] q_thc = q
    cdef const float[:, ::1] weights_th = weights
    cdef const int32_t[:, ::1] page_table_bp = page_table
    cdef const int32_t[::1] q_start_b = q_start
    cdef const int32_t[::1] kv_len_b = kv_len
    cdef const int32_t[::1] positions_t = positions
    cdef uint64_t[:, ::1] out_tw = out
    cdef float[::1] floats = scratch
    cdef void* rows
    cdef IndexSelectArgs args
    cdef Step step
    cdef Op op
    cdef Pool threads = pool
    fill_latent_pages(pages, &rows, &args.page_type)
    args.q = &q_thc[0, 0, 0]
    args.weights = &weights_th[0, 0]
    args.pages = rows
    args.selected = &out_tw[0, 0]
    args.scratch = &floats[0]
    args.heads = q_thc.shape[1]
    args.channels = q_thc.shape[2]
    args.count = count
    args.words = words
    memset(&step, 0, sizeof(Step))
    step.num_tokens = q_thc.shape[0]
    step.num_sequences = kv_len_b.shape[0]
    step.page_size = pages.shape[1]
    step.max_pages = page_table_bp.shape[1]
    step.positions = &positions_t[0]
    step.q_start = &q_start_b[0]
    step.kv_len = &kv_len_b[0]
    step.page_table = &page_table_bp[0, 0]
    op.run = index_select_fn()
    op.args = &args
    with nogil:
        run_ops(threads, &op, 1, &step)
    return out
