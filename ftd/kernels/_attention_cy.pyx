# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""attention on the CPU; see attention_ref for the contract."""

import numpy as np

from ftd.kernels.attention_ref import check

from libc.string cimport memset

from ftd.kernels._kv_store_cy cimport fill_pages
from ftd.kernels._pool cimport Op, Pool, Step, current_isa, run_ops

cdef extern from "attention_run.h" namespace "ftd" nogil:
    OpFn attention_select(int32_t isa)


cdef OpFn attention_fn() noexcept nogil:
    return attention_select(current_isa())


def attention(
    q, k_pages, v_pages, page_table, q_start, kv_len, positions, scale, window=0, sinks=None, pool=None, causal=True
):
    """Return attention of each query over its sequence's pages; see attention_ref."""
    check(q, k_pages, v_pages, page_table, q_start, kv_len, positions, window, sinks, causal)
    out = np.empty_like(q)
    if not q.size:
        return out
    cdef const float[:, :, ::1] q_thc = q
    cdef const int32_t[:, ::1] page_table_bp = page_table
    cdef const int32_t[::1] q_start_b = q_start
    cdef const int32_t[::1] kv_len_b = kv_len
    cdef const int32_t[::1] positions_t = positions
    cdef const float[::1] sinks_h
    cdef float[:, :, ::1] out_thc = out
    cdef unsigned char[::1] workspace
    cdef void* keys
    cdef void* values
    cdef AttentionArgs args
    cdef Step step
    cdef Op op
    cdef Pool threads = pool
    fill_pages(k_pages, v_pages, &keys, &values, &args.page_type)
    args.q = &q_thc[0, 0, 0]
    args.out = &out_thc[0, 0, 0]
    args.k_pages = keys
    args.v_pages = values
    args.sinks = NULL
    if sinks is not None:
        sinks_h = sinks
        args.sinks = &sinks_h[0]
    args.heads = q_thc.shape[1]
    args.groups = k_pages.shape[1]
    args.channels = q_thc.shape[2]
    args.window = window
    args.bidirectional = not causal
    args.scale = scale
    args.max_sequences = kv_len_b.shape[0]
    args.max_keys = kv_len.max()
    workspace = np.zeros(
        attention_workspace_bytes(
            args.heads,
            args.groups,
            args.channels,
            args.max_keys,
            args.max_sequences,
            1 if pool is None else pool.num_threads,
        ),
        np.uint8,
    )
    args.workspace = &workspace[0]
    memset(&step, 0, sizeof(Step))
    step.num_tokens = q_thc.shape[0]
    step.num_sequences = kv_len_b.shape[0]
    step.page_size = v_pages.shape[2]
    step.max_pages = page_table_bp.shape[1]
    step.positions = &positions_t[0]
    step.q_start = &q_start_b[0]
    step.kv_len = &kv_len_b[0]
    step.page_table = &page_table_bp[0, 0]
    op.run = attention_fn()
    op.args = &args
    with nogil:
        run_ops(threads, &op, 1, &step)
    return out
