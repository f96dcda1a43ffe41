"""add on a GPU."""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl

from ftd.kernels.rms_norm_triton import FLOATS
from ftd.kernels.shapes import ceil_div, expect

# 8 values a thread of 4 warps: two loads of 16 bytes each.
BLOCK = 1024


@triton.jit
def _add_kernel(
    # pointers
    out_ptr,
    y_ptr,
    # sizes
    width,
    scale,
    # strides
    out_stride,
    y_stride,
    # meta
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < width

    out_at = out_ptr + token * out_stride + column
    y = tl.load(y_ptr + token * y_stride + column, mask=mask, other=0.0).to(tl.float32)
    total = tl.load(out_at, mask=mask, other=0.0).to(tl.float32) + scale * y

    tl.store(out_at, total.to(out_ptr.dtype.element_ty), mask=mask)


def add_into(y: torch.Tensor, scale: float = 1.0, *, out: torch.Tensor) -> torch.Tensor:
    """Add ``scale * y`` to ``out`` in place and return it.

    out, y  [T, D] f32 or bf16   any stride between rows

    Safe under graph capture.
    Raises ValueError if y is not of out's shape or a type differs.
    """
    expect("out", out, FLOATS, ("T", "D"))
    expect("y", y, FLOATS, tuple(out.shape))
    tokens, width = out.shape
    if tokens and width:
        grid = (tokens, ceil_div(width, BLOCK))
        _add_kernel[grid](out, y, width, scale, out.stride(0), y.stride(0), BLOCK=BLOCK, num_warps=4)
    return out


def add(x: torch.Tensor, y: torch.Tensor, scale: float = 1.0, pool: object = None) -> torch.Tensor:
    """Return x + scale * y, of x's type; see add_ref. f32 or bf16, any stride between rows."""
    expect("x", x, FLOATS, ("T", "D"))
    return add_into(y, scale, out=x.clone())
