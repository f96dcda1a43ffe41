"""latent_norm on a GPU: a program a row."""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl

from ftd.kernels.rms_norm_triton import FLOATS
from ftd.kernels.shapes import expect, power_of_two


@triton.jit
def _latent_norm_kernel(
    # pointers
    x_ptr, weight_ptr, out_ptr,
    # sizes
    latent, tail, eps,
    # strides
    x_stride, out_stride,
    # meta
    INTERLEAVED: tl.constexpr, BLOCK: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    x_at, out_at = x_ptr + row * x_stride, out_ptr + row * out_stride
    column = tl.arange(0, BLOCK)
    x = tl.load(x_at + column, mask=column < latent, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=column < latent, other=0.0)
    y = x * (1.0 / tl.sqrt(tl.sum(x * x, axis=0) / latent + eps)) * weight
    tl.store(out_at + column, y.to(out_ptr.dtype.element_ty), mask=column < latent)
    if TAIL > 0:
        place = tl.arange(0, TAIL)
        source = place
        if INTERLEAVED:
            source = tl.where(place < tail // 2, 2 * place, 2 * (place - tail // 2) + 1)
        rest = tl.load(x_at + latent + source, mask=place < tail, other=0.0)
        tl.store(out_at + latent + place, rest.to(out_ptr.dtype.element_ty), mask=place < tail)


def latent_norm_into(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    interleaved: bool = False,
    *,
    out: torch.Tensor,
) -> torch.Tensor:
    """Normalise the latent of each row and pass on the key behind it: ``out``.

    x, out  [T, L + R] f32 or bf16   any stride between rows; out is not x
    weight  [L] f32

    Safe under graph capture. Raises ValueError if a shape or type differs.
    """
    expect("x", x, FLOATS, ("T", "L + R"))
    expect("weight", weight, "float32", ("L",))
    latent = int(weight.shape[0])
    tail = int(x.shape[1]) - latent
    if latent < 1 or tail < 0 or (interleaved and tail % 2):
        raise ValueError(
            f"x must hold the latent and a tail, even where pairs are sorted, got {x.shape[1]} channels "
            f"of which {latent} are the latent"
        )
    if not eps >= 0.0:
        raise ValueError(f"eps must be at least 0, got {eps}")
    expect("out", out, FLOATS, tuple(x.shape))
    if x.shape[0]:
        _latent_norm_kernel[(x.shape[0],)](
            x, weight, out, latent, tail, eps, x.stride(0), out.stride(0),
            INTERLEAVED=interleaved, BLOCK=power_of_two(latent),
            TAIL=power_of_two(tail) if tail else 0, num_warps=4,
        )  # fmt: skip
    return out


def latent_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float = 1e-6,
    interleaved: bool = False,
    pool: object = None,
) -> torch.Tensor:
    """Return the rows of x with their latents normalised, of its type; see latent_norm_ref."""
    return latent_norm_into(x, weight, eps, interleaved, out=torch.empty_like(x))
