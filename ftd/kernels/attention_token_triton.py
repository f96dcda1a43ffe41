"""What decode attention does with the step's own token where it gets q, k and v as the products gave them.

    q ─▶ norm of each head ─▶ rope ─▶ attention
    k ─▶ norm of each head ─▶ rope ─▶ its page     the program that reads the last key stores it before
    v ───────────────────────────────▶ its page

It is ``qkv_post`` of one token a sequence inside of the attention's kernel, for heads that rotate whole.
"""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from ftd.kernels.qkv_post_triton import check
from ftd.kernels.rope_triton import cosine_sine


class NewTokens(NamedTuple):
    """One token a sequence as the products gave it, and what its norms and rotation need.

    k, v              [B, G*C] f32 or bf16   any stride between rows
    kv_index          [B] i32                where K and V go; negative: not stored
    positions         [B] i32
    inv_freq          [C/2] f32              radians a position
    rope_scale                               factor on cosine and sine
    q_norm, k_norm    [C] f32                of the norm of each head, both or none
    """

    k: torch.Tensor
    v: torch.Tensor
    kv_index: torch.Tensor
    positions: torch.Tensor
    inv_freq: torch.Tensor
    rope_scale: float
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None
    eps: float = 1e-6

    def check(self, q: torch.Tensor, k_pages: torch.Tensor, v_pages: torch.Tensor) -> None:
        """Raise ValueError unless these are tokens of ``q`` and heads rotate whole."""
        check(
            q, self.k, self.v, k_pages, v_pages,
            self.kv_index, self.positions, self.inv_freq, self.q_norm, self.k_norm,
        )  # fmt: skip
        if not rotates_whole(self.inv_freq, k_pages.shape[2]):
            raise ValueError(f"heads of {k_pages.shape[2]} channels must rotate whole, in 64, 128 or 256")


def rotates_whole(inv_freq: torch.Tensor, channels: int) -> bool:
    """Return whether attention can rotate heads of so many channels itself."""
    return channels in (64, 128, 256) and 2 * inv_freq.shape[0] == channels


@triton.jit
def partners(C: tl.constexpr):
    """Return the channel [C] that each one is rotated with."""
    column = tl.arange(0, C)
    return tl.where(column < C // 2, column + C // 2, column - C // 2)


@triton.jit
def angles(position, inv_freq, scale, C: tl.constexpr):
    """Return cosine and sine [1, C] of a scalar position, to multiply a channel and its partner by."""
    column = tl.arange(0, C)
    frequency = tl.load(inv_freq + column % (C // 2))
    cosine, sine = cosine_sine(tl.zeros([1], tl.int32) + position, frequency)
    return cosine * scale, tl.where((column < C // 2)[None, :], -sine, sine) * scale


@triton.jit
def load_gains(weight, cosine, sine, C: tl.constexpr, HAS_NORM: tl.constexpr):
    """Return what a normalised channel and its partner are multiplied by, [1, C] each."""
    if HAS_NORM:
        cosine *= tl.load(weight + tl.arange(0, C))[None, :]
        sine *= tl.load(weight + partners(C))[None, :]
    return cosine, sine


@triton.jit
def load_heads(rows, inside, C: tl.constexpr):
    """Return the channels of heads at ``rows`` [M, 1] and their partners, [M, C] f32 each."""
    x = tl.load(rows + tl.arange(0, C)[None, :], mask=inside, other=0.0)
    y = tl.load(rows + partners(C)[None, :], mask=inside, other=0.0)
    return x.to(tl.float32), y.to(tl.float32)


@triton.jit
def rotated(x, y, gain, partner_gain, eps, C: tl.constexpr, HAS_NORM: tl.constexpr):
    """Return heads [M, C] f32 of ``load_heads`` after their norm and rotation."""
    values = x * gain + y * partner_gain
    if HAS_NORM:
        values *= (1.0 / tl.sqrt(tl.sum(x * x, axis=1) / C + eps))[:, None]
    return values


@triton.jit
def store_token(key, value, k_pages, v_pages, index, page_stride, C: tl.constexpr, PAGE_SIZE: tl.constexpr):
    """Write one head's key and value [1, C] to their place, for all threads of the program to read."""
    column = tl.arange(0, C)[None, :]
    place = (index // PAGE_SIZE).to(tl.int64) * page_stride
    offset = index % PAGE_SIZE
    tl.store(k_pages + place + offset + column * PAGE_SIZE, key.to(k_pages.dtype.element_ty))
    tl.store(v_pages + place + offset * C + column, value.to(v_pages.dtype.element_ty))
    tl.debug_barrier()
