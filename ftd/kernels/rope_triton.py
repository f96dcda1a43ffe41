"""rope on a GPU, and the pieces of it that ``qkv_post_triton`` shares.

The angle is reduced to one turn in float64, so position 100,000 is as accurate as position 1; sine and cosine
are f32.
"""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl

from ftd.kernels.rms_norm_triton import FLOATS
from ftd.kernels.shapes import expect

# Values of a tile of tokens: 16 for each of 128 threads.
TILE = 2048


@triton.jit
def rope_factors(positions, inv_freq_ptr, column, half, scale):
    """Return cosine and signed sine [rows, columns] f32: y[c] = x[c] * cosine + x[partner of c] * sine."""
    turn = tl.full([1], 0.15915494309189535, tl.float64)  # 1 / (2 pi)
    pair = tl.where(column < half, column, column - half)
    frequency = tl.load(inv_freq_ptr + pair, mask=column < 2 * half, other=0.0).to(tl.float64)
    turns = positions.to(tl.float64)[:, None] * (frequency * turn)[None, :]
    angle = ((turns - tl.floor(turns)) * 6.283185307179586).to(tl.float32)
    cosine = tl.where(column[None, :] < 2 * half, tl.cos(angle) * scale, 1.0)
    sine = tl.sin(angle) * scale
    return cosine, tl.where(column[None, :] < half, -sine, sine)


@triton.jit
def rope_partner(column, half):
    """Return the column that each column is rotated with; its own past the rotated ones."""
    return tl.where(column < half, column + half, tl.where(column < 2 * half, column - half, column))


@triton.jit(do_not_specialize=["num_tokens"])
def _rope_kernel(
    # pointers
    x_ptr,
    positions_ptr,
    inv_freq_ptr,
    out_ptr,
    # sizes
    num_tokens,
    channels,
    half,
    scale,
    # strides
    x_stride_t,
    x_stride_h,
    out_stride_t,
    out_stride_h,
    # meta
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    head = tl.program_id(1)
    column = tl.arange(0, BLOCK)
    mask = (token < num_tokens)[:, None] & (column < channels)[None, :]
    position = tl.load(positions_ptr + token, mask=token < num_tokens, other=0)

    cosine, sine = rope_factors(position, inv_freq_ptr, column, half, scale)
    row = x_ptr + (token.to(tl.int64) * x_stride_t)[:, None] + head * x_stride_h
    x = tl.load(row + column[None, :], mask=mask, other=0.0).to(tl.float32)
    partner = tl.load(row + rope_partner(column, half)[None, :], mask=mask, other=0.0).to(tl.float32)
    y = x * cosine + partner * sine

    tl.debug_barrier()  # out may be x: every thread has read what another one overwrites
    out = out_ptr + (token.to(tl.int64) * out_stride_t)[:, None] + head * out_stride_h
    tl.store(out + column[None, :], y.to(out_ptr.dtype.element_ty), mask=mask)


def rope(
    x: torch.Tensor,
    positions: torch.Tensor,
    inv_freq: torch.Tensor,
    scale: float = 1.0,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Rotate channel pairs (j, j + R) of each head by ``positions[t] * inv_freq[j]``; see rope_ref.

    x, out     [T, H, C] f32 or bf16   any stride between tokens and heads; out may be x, allocated if None
    positions  [T] i32
    inv_freq   [R] f32

    Safe under graph capture if ``out`` is given.
    Raises ValueError if a shape or type differs or 2*R > C.
    """
    expect("x", x, FLOATS, ("T", "H", "C"))
    tokens, heads, channels = x.shape
    expect("positions", positions, "int32", (tokens,))
    expect("inv_freq", inv_freq, "float32", ("C_rot/2",))
    half = int(inv_freq.shape[0])
    if 2 * half > channels:
        raise ValueError(f"inv_freq rotates {2 * half} channels, a head has {channels}")
    out = torch.empty_like(x) if out is None else out
    expect("out", out, FLOATS, tuple(x.shape))
    if not tokens or not heads or not channels:
        return out
    block = triton.next_power_of_2(channels)
    rows = max(1, TILE // block) if tokens > 1 else 1
    _rope_kernel[(triton.cdiv(tokens, rows), heads)](
        x,
        positions,
        inv_freq,
        out,
        tokens,
        channels,
        half,
        scale,
        x.stride(0),
        x.stride(1),
        out.stride(0),
        out.stride(1),
        TOKENS=rows,
        BLOCK=block,
        num_warps=4 if rows > 1 else 1,
    )
    return out
