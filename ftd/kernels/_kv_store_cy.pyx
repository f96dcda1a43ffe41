# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""kv_store on the CPU; see kv_store_ref for the contract."""

import numpy as np

from ftd.kernels.kv_store_ref import check

from libc.string cimport memset

from ftd.kernels._pool cimport Op, Pool, Step, current_isa, run_ops

cdef extern from "kv_store_run.h" namespace "ftd" nogil:
    OpFn kv_store_select(int32_t isa)


cdef OpFn kv_store_fn() noexcept nogil:
    return kv_store_select(current_isa())


cdef int fill_pages(object k_pages, object v_pages, void** k, void** v, int32_t* page_type) except -1:
    for name, pages in (("k_pages", k_pages), ("v_pages", v_pages)):
        if not (pages.flags.c_contiguous and pages.flags.writeable):
            raise ValueError(f"{name} must be contiguous and writeable")
    cdef unsigned char[::1] k_bytes = k_pages.reshape(-1).view(np.uint8)
    cdef unsigned char[::1] v_bytes = v_pages.reshape(-1).view(np.uint8)
    k[0] = &k_bytes[0]
    v[0] = &v_bytes[0]
    page_type[0] = PAGES_F16 if k_pages.dtype == np.float16 else PAGES_F32
    return 0


def kv_store(k, v, k_pages, v_pages, kv_index, pool=None):
    """Write each token's key and value to its place in the pages; see kv_store_ref."""
    check(k, v, k_pages, v_pages, kv_index)
    cdef const float[:, :, ::1] k_tgc = k
    cdef const float[:, :, ::1] v_tgc = v
    cdef const int32_t[::1] kv_index_t = kv_index
    cdef KvStoreArgs args
    cdef Step step
    cdef Op op
    cdef Pool threads = pool
    if not k.shape[0]:
        return
    fill_pages(k_pages, v_pages, &args.k_pages, &args.v_pages, &args.page_type)
    args.k = &k_tgc[0, 0, 0]
    args.v = &v_tgc[0, 0, 0]
    args.groups = k_tgc.shape[1]
    args.channels = k_tgc.shape[2]
    memset(&step, 0, sizeof(Step))
    step.num_tokens = k_tgc.shape[0]
    step.page_size = v_pages.shape[2]
    step.kv_index = &kv_index_t[0]
    op.run = kv_store_fn()
    op.args = &args
    with nogil:
        run_ops(threads, &op, 1, &step)
