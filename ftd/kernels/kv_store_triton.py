"""kv_store on a GPU, and the piece of it that ``qkv_post_triton`` shares.

Keys lie in their page channel by channel, so the tile is turned before it is stored: neighbouring threads
then write neighbouring tokens of a page.
"""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl

from ftd.kernels.kv_store_ref import check_pages
from ftd.kernels.rms_norm_triton import FLOATS
from ftd.kernels.shapes import ceil_div, expect, power_of_two

# A page of 32 tokens at a time, where there are so many.
TOKENS = 32


@triton.jit
def store_key(k, pages_ptr, index, column, kept, page_stride, PAGE_SIZE: tl.constexpr):
    """Write a tile of keys [tokens, columns] f32 to pages [P, C, PAGE_SIZE] where ``kept``."""
    page = (index // PAGE_SIZE).to(tl.int64)
    place = page * page_stride + index % PAGE_SIZE
    at = pages_ptr + place[None, :] + (column * PAGE_SIZE)[:, None]
    tl.store(at, tl.trans(k).to(pages_ptr.dtype.element_ty), mask=tl.trans(kept))


@triton.jit
def store_value(v, pages_ptr, index, column, kept, page_stride, PAGE_SIZE: tl.constexpr, C: tl.constexpr):
    """Write a tile of values [tokens, columns] f32 to pages [P, PAGE_SIZE, C] where ``kept``."""
    page = (index // PAGE_SIZE).to(tl.int64)
    place = page * page_stride + (index % PAGE_SIZE) * C
    tl.store(pages_ptr + place[:, None] + column[None, :], v.to(pages_ptr.dtype.element_ty), mask=kept)


@triton.jit(do_not_specialize=["num_tokens"])
def _kv_store_kernel(
    # pointers
    k_ptr,
    v_ptr,
    k_pages_ptr,
    v_pages_ptr,
    kv_index_ptr,
    # sizes
    num_tokens,
    # strides
    k_stride_t,
    k_stride_h,
    v_stride_t,
    v_stride_h,
    page_stride,
    head_stride,
    # meta
    PAGE_SIZE: tl.constexpr,
    C: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    head = tl.program_id(1)
    column = tl.arange(0, BLOCK)
    index = tl.load(kv_index_ptr + token, mask=token < num_tokens, other=-1)
    kept = (index >= 0)[:, None] & (column < C)[None, :]

    at = (token.to(tl.int64) * k_stride_t)[:, None] + head * k_stride_h + column[None, :]
    k = tl.load(k_ptr + at, mask=kept, other=0.0).to(tl.float32)
    store_key(k, k_pages_ptr + head * head_stride, index, column, kept, page_stride, PAGE_SIZE)

    at = (token.to(tl.int64) * v_stride_t)[:, None] + head * v_stride_h + column[None, :]
    v = tl.load(v_ptr + at, mask=kept, other=0.0).to(tl.float32)
    store_value(v, v_pages_ptr + head * head_stride, index, column, kept, page_stride, PAGE_SIZE, C)


def kv_store(
    k: torch.Tensor,
    v: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    kv_index: torch.Tensor,
    pool: object = None,
) -> None:
    """Write each token's key and value to its place in the pages; see kv_store_ref.

    k, v      [T, G, C] f32 or bf16        any stride between tokens and heads
    k_pages   [P, G, C, page_size] f16 or f32
    v_pages   [P, G, page_size, C] as k_pages
    kv_index  [T] i32                      on the device; a token whose index is negative is not stored

    Safe under graph capture.
    Raises ValueError if a shape or type differs.
    """
    expect("k", k, FLOATS, ("T", "G", "C"))
    tokens, heads, channels = k.shape
    expect("v", v, FLOATS, (tokens, heads, channels))
    check_pages(k_pages, v_pages, heads, channels)
    expect("kv_index", kv_index, "int32", (tokens,))
    if not tokens:
        return
    rows = TOKENS if tokens > 1 else 1
    _kv_store_kernel[(ceil_div(tokens, rows), heads)](
        k,
        v,
        k_pages,
        v_pages,
        kv_index,
        tokens,
        k.stride(0),
        k.stride(1),
        v.stride(0),
        v.stride(1),
        k_pages.stride(0),
        k_pages.stride(1),
        PAGE_SIZE=k_pages.shape[3],
        C=channels,
        TOKENS=rows,
        BLOCK=power_of_two(channels),
        num_warps=4 if rows > 1 else 1,
    )
