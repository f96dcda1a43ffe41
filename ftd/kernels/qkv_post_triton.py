"""qkv_post: all that lies between the products of q, k, v and attention, in one launch.

    q ─▶ norm of each head ─▶ rope ─▶ q, in place
    k ─▶ norm of each head ─▶ rope ─▶ pages
    v ───────────────────────────────▶ pages

It is rms_norm, rope and kv_store of the references in that order; norm and rope may be left out.
"""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl

from ftd.kernels.kv_store_ref import check_pages
from ftd.kernels.kv_store_triton import store_key, store_value
from ftd.kernels.rms_norm_triton import FLOATS
from ftd.kernels.rope_triton import cosine_sine
from ftd.kernels.shapes import ceil_div, expect, power_of_two

# Few tokens: one program a head, to have as many as there are (H200, 32 and 4 heads of 128: 2.9 us for 32
# tokens, 3.6 for 64, where tiles take 7.2). Many: some tokens and heads a program, which
# share sines and cosines. Registers leave room for 14 such programs on a multiprocessor: what counts is how
# many loads are in flight.
FEW_TOKENS = 64
MANY_TOKENS_TILE = 8
MANY_TOKENS_HEADS = 4
MANY_TOKENS_WARPS = 2


@triton.jit
def _part(row, weight_ptr, column, size, known, HAS_NORM: tl.constexpr):
    """Return columns of heads [tokens, columns] f32, and the norm's weights of them [1, columns]."""
    weight = 1.0
    if HAS_NORM:
        weight = tl.load(weight_ptr + column, mask=column < size, other=0.0)[None, :]
    x = tl.load(row + column[None, :], mask=known & (column < size)[None, :], other=0.0)
    return x.to(tl.float32), weight


@triton.jit(do_not_specialize=["num_tokens"])
def _qkv_post_kernel(
    # pointers
    q_ptr,
    k_ptr,
    v_ptr,
    q_weight_ptr,
    k_weight_ptr,
    positions_ptr,
    inv_freq_ptr,
    k_pages_ptr,
    v_pages_ptr,
    kv_index_ptr,
    # sizes
    num_tokens,
    eps,
    scale,
    # strides
    q_stride,
    k_stride,
    v_stride,
    page_stride,
    head_stride,
    # meta
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    C: tl.constexpr,
    HALF: tl.constexpr,
    HAS_NORM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_REST: tl.constexpr,
):
    # ---- program ids: a tile of tokens, HEADS of the heads of q, k and v in that order
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    first = tl.program_id(1) * HEADS
    inside = token < num_tokens
    known = inside[:, None]
    wide = token.to(tl.int64)[:, None]
    index = tl.load(kv_index_ptr + token, mask=inside, other=-1)
    stored = (index >= 0)[:, None]
    HAS_REST: tl.constexpr = 2 * HALF < C
    pair = tl.arange(0, BLOCK)
    rest_column = 2 * HALF + tl.arange(0, BLOCK_REST)
    if HALF > 0:
        position = tl.load(positions_ptr + token, mask=inside, other=0)
        cosine, sine = cosine_sine(position, tl.load(inv_freq_ptr + pair, mask=pair < HALF, other=0.0))
        cosine *= scale
        sine *= scale

    # ---- loop over heads: values go to their pages, keys too once they are normalised and rotated; q stays
    for head in range(first, tl.minimum(first + HEADS, NUM_HEADS + 2 * NUM_KV_HEADS)):
        if head >= NUM_HEADS + NUM_KV_HEADS:
            group = head - NUM_HEADS - NUM_KV_HEADS
            row = v_ptr + wide * v_stride + group * C
            pages = v_pages_ptr + group * head_stride
            if HALF > 0:
                for side in tl.static_range(2):
                    column = side * HALF + pair
                    x, _ = _part(row, v_ptr, column, (side + 1) * HALF, known, False)
                    kept = stored & (pair < HALF)[None, :]
                    store_value(x, pages, index, column, kept, page_stride, PAGE_SIZE, C)
            if HAS_REST:
                x, _ = _part(row, v_ptr, rest_column, C, known, False)
                kept = stored & (rest_column < C)[None, :]
                store_value(x, pages, index, rest_column, kept, page_stride, PAGE_SIZE, C)
        else:
            is_key = head >= NUM_HEADS
            group = head - NUM_HEADS
            if is_key:
                row = k_ptr + wide * k_stride + group * C
                weight_ptr = k_weight_ptr
            else:
                row = q_ptr + wide * q_stride + head * C
                weight_ptr = q_weight_ptr
            square = tl.zeros([TOKENS], tl.float32)
            if HALF > 0:
                low, low_weight = _part(row, weight_ptr, pair, HALF, known, HAS_NORM)
                high, high_weight = _part(row, weight_ptr, HALF + pair, 2 * HALF, known, HAS_NORM)
                square += tl.sum(low * low + high * high, axis=1)
            if HAS_REST:
                rest, rest_weight = _part(row, weight_ptr, rest_column, C, known, HAS_NORM)
                square += tl.sum(rest * rest, axis=1)
            if HAS_NORM:
                factor = (1.0 / tl.sqrt(square / C + eps))[:, None]
                if HALF > 0:
                    low *= factor * low_weight
                    high *= factor * high_weight
                if HAS_REST:
                    rest *= factor * rest_weight
            if HALF > 0:
                y = low * cosine - high * sine
                z = high * cosine + low * sine
                mask = known & (pair < HALF)[None, :]
                if is_key:
                    pages = k_pages_ptr + group * head_stride
                    store_key(y, pages, index, pair, mask & stored, page_stride, PAGE_SIZE)
                    store_key(z, pages, index, HALF + pair, mask & stored, page_stride, PAGE_SIZE)
                else:
                    tl.store(row + pair[None, :], y.to(q_ptr.dtype.element_ty), mask=mask)
                    tl.store(row + HALF + pair[None, :], z.to(q_ptr.dtype.element_ty), mask=mask)
            if HAS_REST:
                mask = known & (rest_column < C)[None, :]
                if is_key:
                    pages = k_pages_ptr + group * head_stride
                    store_key(rest, pages, index, rest_column, mask & stored, page_stride, PAGE_SIZE)
                else:
                    tl.store(row + rest_column[None, :], rest.to(q_ptr.dtype.element_ty), mask=mask)


def check(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    kv_index: torch.Tensor,
    positions: torch.Tensor,
    inv_freq: torch.Tensor | None,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
) -> None:
    """Raise ValueError unless the arguments fit the contract of ``qkv_post``."""
    check_pages(k_pages, v_pages, "G", "C")
    _, groups, channels, _ = k_pages.shape
    expect("q", q, FLOATS, ("T", "H*C"))
    tokens, width = q.shape
    if width % channels:
        raise ValueError(f"width {width} is no multiple of {channels} channels")
    expect("k", k, FLOATS, (tokens, groups * channels))
    expect("v", v, FLOATS, (tokens, groups * channels))
    expect("kv_index", kv_index, "int32", (tokens,))
    expect("positions", positions, "int32", (tokens,))
    if inv_freq is not None:
        expect("inv_freq", inv_freq, "float32", ("C_rot/2",))
        if 2 * inv_freq.shape[0] > channels:
            raise ValueError(f"inv_freq rotates {2 * inv_freq.shape[0]} channels, a head has {channels}")
    if (q_norm is None) != (k_norm is None):
        raise ValueError("q_norm and k_norm come together")
    for name, weight in (("q_norm", q_norm), ("k_norm", k_norm)):
        if weight is not None:
            expect(name, weight, "float32", (channels,))


def qkv_post(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    kv_index: torch.Tensor,
    positions: torch.Tensor,
    inv_freq: torch.Tensor | None,
    scale: float = 1.0,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 1e-6,
) -> None:
    """Normalise and rotate the heads of q in place, those of k on their way to the pages; store v too.

    q          [T, H*C] f32 or bf16         any stride between rows; written in place
    k, v       [T, G*C] f32 or bf16         any stride between rows; not changed
    k_pages    [P, G, C, page_size] f16 or f32
    v_pages    [P, G, page_size, C] as k_pages
    kv_index   [T] i32                      page * page_size + offset; negative: not stored
    positions  [T] i32
    inv_freq   [R] f32                      radians a position, 2*R <= C; None: no rope
    scale                                   factor on cosine and sine
    q_norm, k_norm  [C] f32                 weights of the norm of each head; None: no norm

    Safe under graph capture. Raises ValueError if a shape or type differs.
    """
    check(q, k, v, k_pages, v_pages, kv_index, positions, inv_freq, q_norm, k_norm)
    _, groups, channels, page_size = k_pages.shape
    tokens, width = q.shape
    heads = width // channels
    if not tokens:
        return
    half = 0 if inv_freq is None else int(inv_freq.shape[0])
    few = tokens <= FEW_TOKENS
    # wider heads take fewer tokens: a tile is to fit registers
    tile = max(1, MANY_TOKENS_TILE * 128 // max(128, power_of_two(channels)))
    rows, heads_each = (1, 1) if few else (tile, MANY_TOKENS_HEADS)
    unused = kv_index  # stands for a pointer that the kernel does not read
    _qkv_post_kernel[(ceil_div(tokens, rows), ceil_div(heads + 2 * groups, heads_each))](
        q, k, v, unused if q_norm is None else q_norm, unused if k_norm is None else k_norm,
        positions, unused if inv_freq is None else inv_freq, k_pages, v_pages, kv_index,
        tokens, eps, scale,
        q.stride(0), k.stride(0), v.stride(0), k_pages.stride(0), k_pages.stride(1),
        NUM_HEADS=heads, NUM_KV_HEADS=groups, C=channels, HALF=half, HAS_NORM=q_norm is not None,
        PAGE_SIZE=page_size, TOKENS=rows, HEADS=heads_each,
        BLOCK=power_of_two(max(1, half)),
        BLOCK_REST=power_of_two(max(1, channels - 2 * half)),
        num_warps=1 if few else MANY_TOKENS_WARPS,
    )  # fmt: skip
