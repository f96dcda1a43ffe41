"""head_linear on a GPU: each head of a row times a matrix of its own.

The rows that a head uses are unpacked once, at load, to [H, N, K] in bfloat16 or float32, whatever side of
the product they stand on: they are few of a model's weights, and one kernel is then right for every format.
"""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

from typing import Any

import torch
import triton
import triton.language as tl

from ftd.kernels import interpreter  # noqa: F401  loops up to computed bounds need it
from ftd.kernels.dequantize_triton import dequantize
from ftd.kernels.device_matrix import DeviceMatrix
from ftd.kernels.head_linear_ref import check
from ftd.kernels.rms_norm_triton import FLOATS
from ftd.kernels.shapes import ceil_div, expect, power_of_two

# Rows, columns and depth of a tile; few rows stream weights, so many programs with short columns.
FEW_ROWS, FEW = 16, (16, 32, 128)
MANY = (64, 64, 64)
F32 = (16, 32, 32)


@triton.jit(do_not_specialize=["num_rows"])
def _head_linear_kernel(
    # pointers
    x_ptr, weight_ptr, out_ptr,
    # sizes
    num_rows, N, K, tail,
    # strides
    x_stride, out_stride,
    # meta
    INTERLEAVED: tl.constexpr, TAIL: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    # ---- program ids
    row = tl.program_id(2) * BM + tl.arange(0, BM)
    head = tl.program_id(1)
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    known = (row < num_rows)[:, None]
    x_at = x_ptr + row.to(tl.int64)[:, None] * x_stride + head * (K + tail)
    out_at = out_ptr + row.to(tl.int64)[:, None] * out_stride + head * (N + tail)
    weight_at = weight_ptr + head.to(tl.int64) * N * K + column[:, None] * K
    # ---- loop
    total = tl.zeros([BM, BN], tl.float32)
    for first in range(0, K, BK):
        k = first + tl.arange(0, BK)
        x = tl.load(x_at + k[None, :], mask=known & (k < K)[None, :], other=0.0)
        weight = tl.load(weight_at + k[None, :], mask=(column < N)[:, None] & (k < K)[None, :], other=0.0)
        total = tl.dot(x.to(weight.dtype), tl.trans(weight), total, input_precision="ieee")
    # ---- store
    tl.store(out_at + column[None, :], total.to(out_ptr.dtype.element_ty), mask=known & (column < N)[None, :])
    if TAIL > 0 and tl.program_id(0) == 0:
        place = tl.arange(0, TAIL)
        source = place
        if INTERLEAVED:
            source = tl.where(place < tail // 2, 2 * place, 2 * (place - tail // 2) + 1)
        mask = known & (place < tail)[None, :]
        rest = tl.load(x_at + K + source[None, :], mask=mask, other=0.0)
        tl.store(out_at + N + place[None, :], rest.to(out_ptr.dtype.element_ty), mask=mask)


def unpacked(
    weight: DeviceMatrix, heads: int, first: int, rows: int, transposed: bool, dtype: torch.dtype
) -> torch.Tensor:
    """Return the rows in use of each head as [H, N, K]: those of W_h, or of its transpose."""
    whole = dequantize(weight).view(heads, -1, weight.shape[1])[:, first : first + rows]
    return (whole.transpose(1, 2) if transposed else whole).to(dtype).contiguous()


def head_linear_into(
    x: torch.Tensor,
    weight: torch.Tensor,
    tail: int = 0,
    interleaved: bool = False,
    *,
    out: torch.Tensor,
) -> torch.Tensor:
    """Multiply each head of ``x`` with its own matrix, copy a head's tail behind the product: ``out``.

    x       [T, H * (K + tail)] f32 or bf16   any stride between rows
    weight  [H, N, K] f32 or bf16             contiguous, as ``unpacked`` gives it
    tail, interleaved                         as in head_linear_ref
    out     [T, H * (N + tail)] f32 or bf16   not x

    Safe under graph capture. Raises ValueError if a shape or type differs.
    """
    expect("weight", weight, "float32 bfloat16", ("H", "N", "K"))
    heads, wide, deep = weight.shape
    expect("x", x, FLOATS, ("T", heads * (deep + tail)))
    tokens = int(x.shape[0])
    expect("out", out, FLOATS, (tokens, heads * (wide + tail)))
    if not tokens:
        return out
    rows, columns, depth = F32 if weight.dtype == torch.float32 else FEW if tokens <= FEW_ROWS else MANY
    _head_linear_kernel[(ceil_div(wide, columns), heads, ceil_div(tokens, rows))](
        x, weight, out, tokens, wide, deep, tail, x.stride(0), out.stride(0),
        INTERLEAVED=interleaved, TAIL=power_of_two(tail) if tail else 0,
        BM=rows, BN=columns, BK=depth, num_warps=4,
    )  # fmt: skip
    return out


def head_linear(
    x: torch.Tensor,
    weight: DeviceMatrix,
    tail: int = 0,
    interleaved: bool = False,
    first: int = 0,
    rows: int = 0,
    transposed: bool = False,
    pool: object = None,
) -> torch.Tensor:
    """Return the product of each head of x [T, H, K + tail] and its tail, of x's type; see head_linear_ref.

    Unpacks the weight each time, to f32 where x is f32, else to bf16.
    """
    expect("x", x, FLOATS, ("T", "H", "K + tail"))
    exact = x.dtype == torch.float32
    example: Any = weight  # only its shape is looked at
    used, wide, _ = check(x.float(), example, tail, interleaved, first, rows, transposed)
    matrices = unpacked(
        weight, x.shape[1], first, used, transposed, torch.float32 if exact else torch.bfloat16
    )
    out = x.new_empty((*x.shape[:2], wide + tail))
    head_linear_into(x.flatten(1), matrices, tail, interleaved, out=out.flatten(1))
    return out
