"""add on a GPU: out += scale * x."""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl

from ftd.kernels.rms_norm_triton import FLOATS
from ftd.kernels.shapes import expect

# 8 values a thread of 4 warps: two loads of 16 bytes each.
BLOCK = 1024


@triton.jit
def _add_kernel(
    # pointers
    out_ptr,
    x_ptr,
    # sizes
    width,
    scale,
    # strides
    out_stride,
    x_stride,
    # meta
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < width

    out_at = out_ptr + token * out_stride + column
    x = tl.load(x_ptr + token * x_stride + column, mask=mask, other=0.0).to(tl.float32)
    total = tl.load(out_at, mask=mask, other=0.0).to(tl.float32) + scale * x

    tl.store(out_at, total.to(out_ptr.dtype.element_ty), mask=mask)


def add(out: torch.Tensor, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """Add ``scale * x`` to ``out`` in place and return it; see add_ref.

    out, x  [T, D] f32 or bf16   any stride between rows

    Safe under graph capture.
    Raises ValueError if x is not of out's shape or a type differs.
    """
    expect("out", out, FLOATS, ("T", "D"))
    expect("x", x, FLOATS, tuple(out.shape))
    tokens, width = out.shape
    if tokens and width:
        grid = (tokens, triton.cdiv(width, BLOCK))
        _add_kernel[grid](out, x, width, scale, out.stride(0), x.stride(0), BLOCK=BLOCK, num_warps=4)
    return out
