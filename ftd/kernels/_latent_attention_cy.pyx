# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""latent_attention on the CPU; see latent_attention_ref for the contract."""

import numpy as np

from ftd.kernels.latent_attention_ref import check

from libc.string cimport memset

from ftd.kernels._latent_store_cy cimport fill_latent_pages
from ftd.kernels._pool cimport Op, Pool, Step, current_isa, run_ops

cdef extern from "latent_attention_run.h" namespace "ftd" nogil:
    OpFn latent_attention_select(int32_t isa)


cdef OpFn latent_attention_fn() noexcept nogil:
    return latent_attention_select(current_isa())


def latent_attention(q, pages, page_table, q_start, kv_len, positions, latent, scale, selected=None, pool=None):
    """Return causal attention of each head over its sequence's latents; see latent_attention_ref."""
    check(q, pages, page_table, q_start, kv_len, positions, latent, selected)
    out = np.empty((q.shape[0], q.shape[1], latent), np.float32)
    if not q.size:
        return out
    parts = 1 if pool is None else pool.num_threads
    scratch = np.empty(parts * latent_scratch_floats(q.shape[2], latent), np.float32)
    cdef const float[:, :, ::1] q_thc = q
    cdef const int32_t[:, ::1] page_table_bp = page_table
    cdef const int32_t[::1] q_start_b = q_start
    cdef const int32_t[::1] kv_len_b = kv_len
    cdef const int32_t[::1] positions_t = positions
    cdef float[:, :, ::1] out_thl = out
    cdef float[::1] floats = scratch
    cdef const uint64_t[:, ::1] selected_tw
    cdef void* rows
    cdef LatentAttentionArgs args
    cdef Step step
    cdef Op op
    cdef Pool threads = pool
    fill_latent_pages(pages, &rows, &args.page_type)
    args.q = &q_thc[0, 0, 0]
    args.out = &out_thl[0, 0, 0]
    args.pages = rows
    args.scratch = &floats[0]
    args.heads = q_thc.shape[1]
    args.channels = q_thc.shape[2]
    args.latent = latent
    args.scale = scale
    args.selected = NULL
    args.words = 0
    if selected is not None:
        selected_tw = selected
        args.selected = &selected_tw[0, 0]
        args.words = selected_tw.shape[1]
    memset(&step, 0, sizeof(Step))
    step.num_tokens = q_thc.shape[0]
    step.num_sequences = kv_len_b.shape[0]
    step.page_size = pages.shape[1]
    step.max_pages = page_table_bp.shape[1]
    step.positions = &positions_t[0]
    step.q_start = &q_start_b[0]
    step.kv_len = &kv_len_b[0]
    step.page_table = &page_table_bp[0, 0]
    op.run = latent_attention_fn()
    op.args = &args
    with nogil:
        run_ops(threads, &op, 1, &step)
    return out
