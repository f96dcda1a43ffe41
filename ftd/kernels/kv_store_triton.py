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
from ftd.kernels.shapes import expect

# A page of 32 tokens at a time, where there are so many.
TOKENS = 32


@triton.jit
def store_key(
    k, pages_ptr, index, mask, head, page_size, channels, page_stride, head_stride, BLOCK: tl.constexpr
):
    """Write a tile of keys [tokens, BLOCK] f32 to pages [P, G, C, page_size], not where index < 0."""
    column = tl.arange(0, BLOCK)
    page = (index // page_size).to(tl.int64)
    place = page * page_stride + index % page_size
    at = pages_ptr + head * head_stride + place[None, :] + (column * page_size)[:, None]
    kept = (mask & (index >= 0))[None, :] & (column < channels)[:, None]
    tl.store(at, tl.trans(k).to(pages_ptr.dtype.element_ty), mask=kept)


@triton.jit
def store_value(
    v, pages_ptr, index, mask, head, page_size, channels, page_stride, head_stride, BLOCK: tl.constexpr
):
    """Write a tile of values [tokens, BLOCK] f32 to their pages [P, G, page_size, C]."""
    column = tl.arange(0, BLOCK)
    page = (index // page_size).to(tl.int64)
    place = page * page_stride + (index % page_size) * channels
    at = pages_ptr + head * head_stride + place[:, None] + column[None, :]
    kept = (mask & (index >= 0))[:, None] & (column < channels)[None, :]
    tl.store(at, v.to(pages_ptr.dtype.element_ty), mask=kept)


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
    channels,
    # strides
    k_stride_t,
    k_stride_h,
    v_stride_t,
    v_stride_h,
    page_stride,
    head_stride,
    # meta
    PAGE_SIZE: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    head = tl.program_id(1)
    column = tl.arange(0, BLOCK)
    inside = token < num_tokens
    mask = inside[:, None] & (column < channels)[None, :]
    index = tl.load(kv_index_ptr + token, mask=inside, other=-1)

    at = (token.to(tl.int64) * k_stride_t)[:, None] + head * k_stride_h + column[None, :]
    k = tl.load(k_ptr + at, mask=mask, other=0.0).to(tl.float32)
    store_key(k, k_pages_ptr, index, inside, head, PAGE_SIZE, channels, page_stride, head_stride, BLOCK)

    at = (token.to(tl.int64) * v_stride_t)[:, None] + head * v_stride_h + column[None, :]
    v = tl.load(v_ptr + at, mask=mask, other=0.0).to(tl.float32)
    store_value(v, v_pages_ptr, index, inside, head, PAGE_SIZE, channels, page_stride, head_stride, BLOCK)


def kv_store(
    k: torch.Tensor, v: torch.Tensor, k_pages: torch.Tensor, v_pages: torch.Tensor, kv_index: torch.Tensor
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
    _kv_store_kernel[(triton.cdiv(tokens, rows), heads)](
        k,
        v,
        k_pages,
        v_pages,
        kv_index,
        tokens,
        channels,
        k.stride(0),
        k.stride(1),
        v.stride(0),
        v.stride(1),
        k_pages.stride(0),
        k_pages.stride(1),
        PAGE_SIZE=k_pages.shape[3],
        TOKENS=rows,
        BLOCK=triton.next_power_of_2(channels),
        num_warps=4 if rows > 1 else 1,
    )
