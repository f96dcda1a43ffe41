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
def angles(position, inv_freq, scale, C: tl.constexpr):
    """Return cosine and sine [1, C] of a scalar position, those of the two halves alike."""
    frequency = tl.load(inv_freq + tl.arange(0, C) % (C // 2))
    cosine, sine = cosine_sine(tl.zeros([1], tl.int32) + position, frequency)
    return cosine * scale, sine * scale


@triton.jit
def rotated(rows, inside, weight, cosine, sine, eps, C: tl.constexpr, HAS_NORM: tl.constexpr):
    """Return heads [M, C] f32 at ``rows`` [M, 1] after their norm and rotation."""
    column = tl.arange(0, C)
    is_low = column < C // 2
    partner = tl.where(is_low, column + C // 2, column - C // 2)
    x = tl.load(rows + column[None, :], mask=inside, other=0.0).to(tl.float32)
    y = tl.load(rows + partner[None, :], mask=inside, other=0.0).to(tl.float32)
    if HAS_NORM:
        factor = (1.0 / tl.sqrt(tl.sum(x * x, axis=1) / C + eps))[:, None]
        x *= factor * tl.load(weight + column)[None, :]
        y *= factor * tl.load(weight + partner)[None, :]
    return x * cosine + tl.where(is_low[None, :], -y, y) * sine


@triton.jit
def store_token(
    # pointers
    k, v, weight, k_pages, v_pages,
    # values
    index, cosine, sine, eps,
    # strides
    page_stride,
    # meta
    HAS_NORM: tl.constexpr, C: tl.constexpr, PAGE_SIZE: tl.constexpr,
):  # fmt: skip
    """Write one token's key and value of one head to their place, for all threads of the program to read."""
    one = tl.arange(0, 1)
    column = tl.arange(0, C)
    inside = (one < 1)[:, None] & (column < C)[None, :]
    key = rotated(k + one[:, None], inside, weight, cosine, sine, eps, C, HAS_NORM)
    value = tl.load(v + one[:, None] + column[None, :])
    place = (index // PAGE_SIZE).to(tl.int64) * page_stride
    offset = index % PAGE_SIZE
    at = k_pages + place + offset + (one[:, None] + column[None, :]) * PAGE_SIZE
    tl.store(at, key.to(k_pages.dtype.element_ty))
    at = v_pages + place + offset * C + one[:, None] + column[None, :]
    tl.store(at, value.to(v_pages.dtype.element_ty))
    tl.debug_barrier()
