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
from ftd.kernels.rms_norm_triton import FLOATS, head_rms
from ftd.kernels.rope_triton import rope_factors, rope_partner
from ftd.kernels.shapes import expect

# Few tokens: one program a head, to have as many as there are. Many: a page of tokens and several heads a
# program, which share sines and cosines.
FEW_TOKENS = 16
MANY_TOKENS_TILE = 32
MANY_TOKENS_HEADS = 8


@triton.jit
def _rotated(
    row,
    weight_ptr,
    mask,
    column,
    channels,
    half,
    eps,
    cosine,
    sine,
    HAS_NORM: tl.constexpr,
    HAS_ROPE: tl.constexpr,
):
    """Return the head at ``row`` [tokens, 1] of pointers, normalised and rotated: [tokens, BLOCK] f32."""
    x = tl.load(row + column[None, :], mask=mask, other=0.0).to(tl.float32)
    if HAS_NORM:
        factor = head_rms(x, channels, eps)[:, None]
        x *= factor * tl.load(weight_ptr + column, mask=column < channels, other=0.0)[None, :]
    if HAS_ROPE:
        other = rope_partner(column, half)
        partner = tl.load(row + other[None, :], mask=mask, other=0.0).to(tl.float32)
        if HAS_NORM:
            partner *= factor * tl.load(weight_ptr + other, mask=column < channels, other=0.0)[None, :]
        x = x * cosine + partner * sine
    return x


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
    num_heads,
    num_kv_heads,
    channels,
    half,
    eps,
    scale,
    # strides
    q_stride,
    k_stride,
    v_stride,
    page_stride,
    head_stride,
    # meta
    HAS_NORM: tl.constexpr,
    HAS_ROPE: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # program ids: a tile of tokens, HEADS of the heads of q, k and v in that order
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    first = tl.program_id(1) * HEADS
    column = tl.arange(0, BLOCK)
    inside = token < num_tokens
    mask = inside[:, None] & (column < channels)[None, :]
    wide = token.to(tl.int64)[:, None]
    cosine = 1.0
    sine = 0.0
    if HAS_ROPE:
        position = tl.load(positions_ptr + token, mask=inside, other=0)
        cosine, sine = rope_factors(position, inv_freq_ptr, column, half, scale)

    for i in range(HEADS):
        head = first + i
        if head < num_heads:
            row = q_ptr + wide * q_stride + head * channels
            y = _rotated(
                row, q_weight_ptr, mask, column, channels, half, eps, cosine, sine, HAS_NORM, HAS_ROPE
            )
            tl.debug_barrier()  # every thread has read what another one overwrites
            tl.store(row + column[None, :], y.to(q_ptr.dtype.element_ty), mask=mask)
        elif head < num_heads + num_kv_heads:
            group = head - num_heads
            row = k_ptr + wide * k_stride + group * channels
            y = _rotated(
                row, k_weight_ptr, mask, column, channels, half, eps, cosine, sine, HAS_NORM, HAS_ROPE
            )
            index = tl.load(kv_index_ptr + token, mask=inside, other=-1)
            store_key(
                y, k_pages_ptr, index, inside, group, PAGE_SIZE, channels, page_stride, head_stride, BLOCK
            )
        elif head < num_heads + 2 * num_kv_heads:
            group = head - num_heads - num_kv_heads
            row = v_ptr + wide * v_stride + group * channels
            y = tl.load(row + column[None, :], mask=mask, other=0.0).to(tl.float32)
            index = tl.load(kv_index_ptr + token, mask=inside, other=-1)
            store_value(
                y, v_pages_ptr, index, inside, group, PAGE_SIZE, channels, page_stride, head_stride, BLOCK
            )


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
    few = tokens <= FEW_TOKENS
    rows, heads_each = (1, 1) if few else (MANY_TOKENS_TILE, MANY_TOKENS_HEADS)
    unused = kv_index  # stands for a pointer that the kernel does not read
    _qkv_post_kernel[(triton.cdiv(tokens, rows), triton.cdiv(heads + 2 * groups, heads_each))](
        q,
        k,
        v,
        unused if q_norm is None else q_norm,
        unused if k_norm is None else k_norm,
        positions,
        unused if inv_freq is None else inv_freq,
        k_pages,
        v_pages,
        kv_index,
        tokens,
        heads,
        groups,
        channels,
        0 if inv_freq is None else inv_freq.shape[0],
        eps,
        scale,
        q.stride(0),
        k.stride(0),
        v.stride(0),
        k_pages.stride(0),
        k_pages.stride(1),
        HAS_NORM=q_norm is not None,
        HAS_ROPE=inv_freq is not None and inv_freq.shape[0] > 0,
        PAGE_SIZE=page_size,
        TOKENS=rows,
        HEADS=heads_each,
        BLOCK=triton.next_power_of_2(channels),
        num_warps=1 if few else 4,
    )
