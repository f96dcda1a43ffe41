"""layer_norm on a GPU: a program a row."""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl

from ftd.kernels.rms_norm_triton import FLOATS, MAX_WIDTH
from ftd.kernels.shapes import expect, power_of_two


@triton.jit
def _layer_norm_kernel(
    # pointers
    x_ptr, weight_ptr, bias_ptr, out_ptr,
    # sizes
    width, eps,
    # strides
    x_stride, out_stride,
    # meta
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < width
    x = tl.load(x_ptr + row * x_stride + column, mask=mask, other=0.0).to(tl.float32)
    centred = tl.where(mask, x - tl.sum(x, axis=0) / width, 0.0)
    factor = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / width + eps)
    weight = tl.load(weight_ptr + column, mask=mask, other=0.0)
    y = centred * factor * weight + tl.load(bias_ptr + column, mask=mask, other=0.0)
    tl.store(out_ptr + row * out_stride + column, y.to(out_ptr.dtype.element_ty), mask=mask)


def layer_norm_into(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-12, *, out: torch.Tensor
) -> torch.Tensor:
    """Shift each row to mean 0, scale it to variance 1, then by ``weight``, and add ``bias``: ``out``.

    x, out        [T, D] f32 or bf16   any stride between rows; out may be x
    weight, bias  [D] f32

    Safe under graph capture.
    Raises ValueError if a shape or type differs, eps < 0 or D > 32768.
    """
    expect("x", x, FLOATS, ("T", "D"))
    tokens, width = x.shape
    expect("weight", weight, "float32", (width,))
    expect("bias", bias, "float32", (width,))
    if not eps >= 0.0:
        raise ValueError(f"eps must be at least 0, got {eps}")
    if width > MAX_WIDTH:
        raise ValueError(f"rows must have at most {MAX_WIDTH} values, got {width}")
    expect("out", out, FLOATS, tuple(x.shape))
    if tokens and width:
        block = power_of_two(width)
        _layer_norm_kernel[(tokens,)](
            x, weight, bias, out, width, eps, x.stride(0), out.stride(0),
            BLOCK=block, num_warps=4 if block <= 2048 else 8,
        )  # fmt: skip
    return out


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-12, pool: object = None
) -> torch.Tensor:
    """Return the normalised rows of x, of its type; see layer_norm_ref and ``layer_norm_into``."""
    return layer_norm_into(x, weight, bias, eps, out=torch.empty_like(x))
