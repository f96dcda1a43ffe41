"""select_logit_rows on a GPU."""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl

from ftd.kernels.rms_norm_triton import FLOATS
from ftd.kernels.shapes import ceil_div, expect

# 8 values a thread of 4 warps: two loads of 16 bytes each.
BLOCK = 1024


@triton.jit
def _select_kernel(
    # pointers
    x_ptr,
    rows_ptr,
    out_ptr,
    # sizes
    width,
    # strides
    x_stride,
    out_stride,
    # meta
    BLOCK: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < width
    row = tl.load(rows_ptr + place).to(tl.int64)

    x = tl.load(x_ptr + tl.maximum(row, 0) * x_stride + column, mask=mask, other=0.0).to(tl.float32)

    tl.store(out_ptr + place * out_stride + column, x.to(out_ptr.dtype.element_ty), mask=mask)


def select_logit_rows_into(x: torch.Tensor, rows: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    """Write the rows of ``x`` whose logits are wanted to ``out`` and return it.

    x     [T, D] f32 or bf16            any stride between rows
    rows  [num_logits] i32              token indices below T; a negative one (padding) takes row 0
    out   [num_logits, D] f32 or bf16   not x

    Safe under graph capture.
    Raises ValueError if a shape or type differs.
    """
    expect("x", x, FLOATS, ("T", "D"))
    expect("rows", rows, "int32", ("num_logits",))
    count, width = int(rows.shape[0]), int(x.shape[1])
    expect("out", out, FLOATS, (count, width))
    if count and width:
        grid = (count, ceil_div(width, BLOCK))
        _select_kernel[grid](x, rows, out, width, x.stride(0), out.stride(0), BLOCK=BLOCK, num_warps=4)
    return out


def select_logit_rows(x: torch.Tensor, rows: torch.Tensor, pool: object = None) -> torch.Tensor:
    """Return the rows of ``x`` whose logits are wanted, of its type; see select_logit_rows_ref."""
    expect("x", x, FLOATS, ("T", "D"))
    return select_logit_rows_into(x, rows, out=x.new_empty((rows.shape[0], x.shape[1])))
