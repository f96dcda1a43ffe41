# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""latent_store on the CPU; see latent_store_ref for the contract."""

import numpy as np

from ftd.kernels.latent_store_ref import check

from libc.string cimport memset

from ftd.kernels._kv_store_cy cimport PAGES_F16, PAGES_F32
from ftd.kernels._pool cimport Op, Pool, Step, current_isa, run_ops

cdef extern from "latent_store_run.h" namespace "ftd" nogil:
    OpFn latent_store_select(int32_t isa)


cdef OpFn latent_store_fn() noexcept nogil:
    return latent_store_select(current_isa())


cdef int fill_latent_pages(object pages, void** at, int32_t* page_type) except -1:
    if not (pages.flags.c_contiguous and pages.flags.writeable):
        raise ValueError("pages must be contiguous and writeable")
    cdef unsigned char[::1] data = pages.reshape(-1).view(np.uint8)
    at[0] = &data[0]
    page_type[0] = PAGES_F16 if pages.dtype == np.float16 else PAGES_F32
    return 0


def latent_store(x, pages, kv_index, pool=None):
    """Write each token's latent and key to its place in the pages; see latent_store_ref."""
    check(x, pages, kv_index)
    if not x.size:
        return
    cdef const float[:, ::1] x_tc = x
    cdef const int32_t[::1] kv_index_t = kv_index
    cdef LatentStoreArgs args
    cdef Step step
    cdef Op op
    cdef Pool threads = pool
    args.x = &x_tc[0, 0]
    fill_latent_pages(pages, &args.pages, &args.page_type)
    args.channels = x_tc.shape[1]
    memset(&step, 0, sizeof(Step))
    step.num_tokens = x_tc.shape[0]
    step.kv_index = &kv_index_t[0]
    op.run = latent_store_fn()
    op.args = &args
    with nogil:
        run_ops(threads, &op, 1, &step)
