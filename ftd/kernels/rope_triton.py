"""rope on a GPU, and the sines and cosines that ``qkv_post_triton`` shares.

The angle is reduced to an eighth of a turn in float64, so position 100,000 is as accurate as position 1; sine
and cosine of what is left are f32.
"""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

from math import isfinite

import torch
import triton
import triton.language as tl

from ftd.kernels.rms_norm_triton import FLOATS
from ftd.kernels.shapes import ceil_div, expect, power_of_two

# Values of a tile of tokens: 16 for each of 128 threads.
TILE = 2048


@triton.jit
def cosine_sine(positions, frequency):
    """Return cosine and sine [rows, pairs] f32 of positions [rows] i32 times frequency [pairs] f32."""
    quarter = tl.full([1], 0.6366197723675814, tl.float64)  # quarters of a turn in a radian: 2 / pi
    quarters = positions.to(tl.float64)[:, None] * (frequency.to(tl.float64) * quarter)[None, :]
    nearest = tl.floor(quarters + 0.5)
    a = (quarters - nearest).to(tl.float32) * 1.5707963267948966
    # Cephes' polynomials on -pi/4 .. pi/4; the library's functions bring a slow path for large angles along
    b = a * a
    sine = a + a * b * (-1.6666654611e-1 + b * (8.3321608736e-3 - b * 1.9515295891e-4))
    cosine = 1.0 - 0.5 * b
    cosine += b * b * (4.166664568298827e-2 + b * (-1.388731625493765e-3 + b * 2.443315711809948e-5))
    turn = nearest.to(tl.int64).to(tl.int32) & 3
    is_odd = (turn & 1) != 0
    c = tl.where(is_odd, sine, cosine)
    s = tl.where(is_odd, cosine, sine)
    return tl.where((turn == 1) | (turn == 2), -c, c), tl.where(turn >= 2, -s, s)


@triton.jit(do_not_specialize=["num_tokens"])
def _rope_kernel(
    # pointers
    x_ptr,
    positions_ptr,
    inv_freq_ptr,
    out_ptr,
    # sizes
    num_tokens,
    scale,
    # strides
    x_stride_t,
    x_stride_h,
    out_stride_t,
    out_stride_h,
    # meta
    C: tl.constexpr,
    HALF: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_REST: tl.constexpr,
):
    # ---- program ids: some tokens of one head
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    head = tl.program_id(1)
    known = (token < num_tokens)[:, None]
    x_at = x_ptr + (token.to(tl.int64) * x_stride_t)[:, None] + head * x_stride_h
    out_at = out_ptr + (token.to(tl.int64) * out_stride_t)[:, None] + head * out_stride_h

    # ---- pairs that turn, then channels that stay
    if HALF > 0:
        column = tl.arange(0, BLOCK)
        mask = known & (column < HALF)[None, :]
        position = tl.load(positions_ptr + token, mask=token < num_tokens, other=0)
        cosine, sine = cosine_sine(position, tl.load(inv_freq_ptr + column, mask=column < HALF, other=0.0))
        low = tl.load(x_at + column[None, :], mask=mask, other=0.0).to(tl.float32) * scale
        high = tl.load(x_at + HALF + column[None, :], mask=mask, other=0.0).to(tl.float32) * scale
        y = (low * cosine - high * sine).to(out_ptr.dtype.element_ty)
        z = (high * cosine + low * sine).to(out_ptr.dtype.element_ty)
        tl.store(out_at + column[None, :], y, mask=mask)
        tl.store(out_at + HALF + column[None, :], z, mask=mask)
    if 2 * HALF < C:
        column = 2 * HALF + tl.arange(0, BLOCK_REST)
        mask = known & (column < C)[None, :]
        rest = tl.load(x_at + column[None, :], mask=mask, other=0.0).to(out_ptr.dtype.element_ty)
        tl.store(out_at + column[None, :], rest, mask=mask)


def rope_into(
    x: torch.Tensor,
    positions: torch.Tensor,
    inv_freq: torch.Tensor,
    scale: float = 1.0,
    *,
    out: torch.Tensor,
) -> torch.Tensor:
    """Rotate channel pairs (j, j + R) of each head by ``positions[t] * inv_freq[j]`` and return ``out``.

    x, out     [T, H, C] f32 or bf16   any stride between tokens and heads; out may be x
    positions  [T] i32
    inv_freq   [R] f32

    Safe under graph capture.
    Raises ValueError if a shape or type differs or 2*R > C.
    """
    expect("x", x, FLOATS, ("T", "H", "C"))
    tokens, heads, channels = x.shape
    expect("positions", positions, "int32", (tokens,))
    expect("inv_freq", inv_freq, "float32", ("C_rot/2",))
    half = int(inv_freq.shape[0])
    if 2 * half > channels:
        raise ValueError(f"inv_freq rotates {2 * half} channels, a head has {channels}")
    expect("out", out, FLOATS, tuple(x.shape))
    if not tokens or not heads or not channels:
        return out
    rows = max(1, TILE // channels) if tokens > 1 else 1
    rows = power_of_two(rows)
    _rope_kernel[(ceil_div(tokens, rows), heads)](
        x,
        positions,
        inv_freq,
        out,
        tokens,
        scale,
        x.stride(0),
        x.stride(1),
        out.stride(0),
        out.stride(1),
        C=channels,
        HALF=half,
        TOKENS=rows,
        BLOCK=power_of_two(max(1, half)),
        BLOCK_REST=power_of_two(max(1, channels - 2 * half)),
        num_warps=4 if rows > 1 else 1,
    )
    return out


def rope(
    x: torch.Tensor,
    positions: torch.Tensor,
    inv_freq: torch.Tensor,
    scale: float = 1.0,
    pool: object = None,
) -> torch.Tensor:
    """Return the heads of x [T, H, C] rotated, of its type; see rope_ref."""
    if not isfinite(scale):
        raise ValueError(f"scale must be finite, got {scale}")
    return rope_into(x, positions, inv_freq, scale, out=torch.empty_like(x))
