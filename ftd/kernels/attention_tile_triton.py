"""What decode and prefill attention on a GPU share: tiles, one step of online softmax, checks.

q comes times scale and log2(e), so that exp2 does for exp. With f16 pages the products take f16, with f32
pages f32; maximum, sum and mixed values are f32.
"""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ftd.kernels import interpreter  # noqa: F401  loops up to computed bounds need it
from ftd.kernels.kv_store_ref import check_pages
from ftd.kernels.rms_norm_triton import FLOATS
from ftd.kernels.shapes import expect

MAX_CHANNELS = 256
LOG2_E = tl.constexpr(1.4426950408889634)
# Below every score, and finite: the difference of two of them is no NaN.
LOWEST = tl.constexpr(-1.0e30)


@dataclass(frozen=True, slots=True)
class Tiles:
    """Launch parameters of a kernel: rows and keys of a tile, warps of a program, stages of its loop."""

    rows: int
    keys: int
    warps: int
    stages: int


@triton.jit
def pages_of(table_ptr, first_key, end, PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return [BLOCK_N] i32: the page of each key from ``first_key`` on, of keys past ``end`` the last one.

    A number is loaded for a page, not for a key, so that the compiler sees which keys share one and loads
    vectors of them. A loop asks an iteration ahead: loads that wait for other loads are not started early.
    """
    key = tl.arange(0, BLOCK_N)
    last = tl.maximum(end - 1, 0) // PAGE_SIZE
    if BLOCK_N % PAGE_SIZE == 0:
        entry = first_key // PAGE_SIZE
        page = tl.zeros([BLOCK_N], tl.int32)
        for i in tl.static_range(BLOCK_N // PAGE_SIZE):
            one = tl.load(table_ptr + tl.minimum(entry + i, last), eviction_policy="evict_last")
            page = tl.where(key // PAGE_SIZE == i, one, page)
        return page
    return tl.load(table_ptr + tl.minimum((first_key + key) // PAGE_SIZE, last))


@triton.jit
def attend(
    # values
    q,
    top,
    total,
    mixed,
    page,
    # pointers
    k_ptr,
    v_ptr,
    # sizes
    first_key,
    end,
    position,
    # strides
    page_stride,
    # meta
    MASKED: tl.constexpr,
    WINDOW: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    C: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Return maximum [M], sum [M] and mixed values [M, BLOCK_C] after BLOCK_N keys more in ``page``."""
    key = first_key + tl.arange(0, BLOCK_N)
    column = tl.arange(0, BLOCK_C)
    place = page.to(tl.int64) * page_stride
    offset = key % PAGE_SIZE

    k_at = k_ptr + (place + offset)[None, :] + (column * PAGE_SIZE)[:, None]
    k = tl.load(k_at) if C == BLOCK_C else tl.load(k_at, mask=(column < C)[:, None], other=0.0)
    score = tl.dot(q, k, input_precision="ieee")
    if MASKED:
        seen = key[None, :] <= position[:, None]
        if WINDOW > 0:
            seen = seen & (key[None, :] > position[:, None] - WINDOW)
        score = tl.where(seen, score, float("-inf"))

    higher = tl.maximum(top, tl.max(score, axis=1))
    weight = tl.exp2(score - higher[:, None])
    fade = tl.exp2(top - higher)
    total = total * fade + tl.sum(weight, axis=1)
    mixed = mixed * fade[:, None]

    v_at = v_ptr + (place + offset * C)[:, None] + column[None, :]
    if MASKED:
        v = tl.load(v_at, mask=(key < end)[:, None] & (column < C)[None, :], other=0.0)
    elif C == BLOCK_C:
        v = tl.load(v_at)
    else:
        v = tl.load(v_at, mask=(column < C)[None, :], other=0.0)
    mixed = tl.dot(weight.to(v.dtype), v, mixed, input_precision="ieee")
    return higher, total, mixed


@triton.jit
def add_sink(sinks_at, known, top, total, mixed):
    """Return maximum, sum and mixed values after one more key a row: score ``sinks_at``, value 0."""
    sink = tl.load(sinks_at, mask=known, other=0.0) * LOG2_E
    higher = tl.maximum(top, sink)
    fade = tl.exp2(top - higher)
    return higher, total * fade + tl.exp2(sink - higher), mixed * fade[:, None]


def check(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    page_table: torch.Tensor,
    num_heads: int,
    scale: float,
    window: int,
    sinks: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    """Raise ValueError unless the arguments fit what both kernels take; values on the device are trusted."""
    check_pages(k_pages, v_pages, "G", "C")
    _, groups, channels, _ = k_pages.shape
    if channels > MAX_CHANNELS:
        raise ValueError(f"a head must have at most {MAX_CHANNELS} channels, got {channels}")
    if num_heads < 1 or num_heads % groups:
        raise ValueError(f"query heads must be a multiple of key-value heads, got {num_heads} and {groups}")
    expect("q", q, FLOATS, ("T", num_heads * channels))
    expect("out", out, FLOATS, tuple(q.shape))
    expect("page_table", page_table, "int32", ("B", "max_pages"))
    if not scale > 0.0:
        raise ValueError(f"scale must be above 0, got {scale}")
    if window < 0:
        raise ValueError(f"window must be at least 0, got {window}")
    if sinks is not None:
        expect("sinks", sinks, "float32", (num_heads,))
