"""gelu on a GPU, with the error function."""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl

from ftd.kernels.rms_norm_triton import FLOATS
from ftd.kernels.shapes import ceil_div, expect

# 8 values a thread of 4 warps.
BLOCK = 1024


@triton.jit
def _gelu_kernel(
    # pointers
    x_ptr, out_ptr,
    # sizes
    width,
    # strides
    x_stride, out_stride,
    # meta
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < width
    x = tl.load(x_ptr + row * x_stride + column, mask=mask, other=0.0).to(tl.float32)
    y = x * (0.5 + 0.5 * tl.erf(x * 0.7071067811865476))
    tl.store(out_ptr + row * out_stride + column, y.to(out_ptr.dtype.element_ty), mask=mask)


def gelu_into(x: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    """Write x times the probability that a normal variable is below x to ``out`` and return it.

    x, out  [T, F] f32 or bf16   any stride between rows; out may be x

    Safe under graph capture. Raises ValueError if a shape or type differs.
    """
    expect("x", x, FLOATS, ("T", "F"))
    tokens, width = x.shape
    expect("out", out, FLOATS, tuple(x.shape))
    if tokens and width:
        _gelu_kernel[(tokens, ceil_div(width, BLOCK))](
            x, out, width, x.stride(0), out.stride(0), BLOCK=BLOCK, num_warps=4
        )
    return out


def gelu(x: torch.Tensor, pool: object = None) -> torch.Tensor:
    """Return gelu of x [T, F], of x's type; see gelu_ref. f32 or bf16, any stride between rows."""
    return gelu_into(x, out=torch.empty_like(x))
