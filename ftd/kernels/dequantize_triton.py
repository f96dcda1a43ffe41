"""dequantize on a GPU: the exact values of a weight, tile by tile."""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl

from ftd.kernels.device_matrix import DeviceMatrix
from ftd.kernels.shapes import ceil_div, expect
from ftd.kernels.weight_tile_triton import (
    PLAIN_FORMATS,
    fp8_scale,
    half_columns,
    half_tiles,
    kernel_planes,
    plain_tile,
)

# A tile of 16 x 128 keeps 16 values in each of 128 threads; 128 columns are one block of fp8_b128.
_BN, _BK = 16, 128


@triton.jit
def store_rows(out, out_stride, values, out_rows, columns, row_inside, K):
    """Store values [rows, columns] in rows ``out_rows`` of out, where inside."""
    pointers = out + out_rows.to(tl.int64)[:, None] * out_stride + columns[None, :]
    tl.store(pointers, values, mask=row_inside[:, None] & (columns < K)[None, :])


@triton.jit
def copy_rows(
    out, planes, rows, out_rows, row_inside, first, K, scale, out_stride, strides,
    FORMAT: tl.constexpr, PLAIN: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    """Store BK columns, from ``first`` on, of ``rows`` times ``scale`` in rows ``out_rows`` of out."""
    if PLAIN:
        columns = first + tl.arange(0, BK)
        values = plain_tile(planes, strides, rows, columns, first, K, FORMAT, BN, BK, False, tl.float32)
        if FORMAT == "fp8_b128":
            values *= fp8_scale(planes, strides, rows, first)[:, None]
        store_rows(out, out_stride, values * scale, out_rows, columns, row_inside, K)
    else:
        low_columns, high_columns = half_columns(first, K, BK, TAIL)
        low, high = half_tiles(planes, strides, rows, first, K, FORMAT, BN, BK, False, TAIL, tl.float32)
        store_rows(out, out_stride, low * scale, out_rows, low_columns, row_inside, K)
        store_rows(out, out_stride, high * scale, out_rows, high_columns, row_inside, K)


@triton.jit(do_not_specialize=["first_row", "num_rows"])
def dequantize_kernel(
    # pointers
    out, planes,
    # sizes
    first_row, num_rows, K,
    # strides
    out_stride, strides,
    # meta
    FORMAT: tl.constexpr, PLAIN: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    """Write BN rows by BK columns; rows of out count from ``first_row``."""
    rows = tl.program_id(0) * BN + tl.arange(0, BN)
    first = tl.program_id(1) * BK
    copy_rows(
        out, planes, first_row + tl.minimum(rows, num_rows - 1), rows, rows < num_rows, first, K, 1.0,
        out_stride, strides, FORMAT, PLAIN, BN, BK, TAIL,
    )  # fmt: skip


def dequantize_into(weight: DeviceMatrix, rows: tuple[int, int], *, out: torch.Tensor) -> torch.Tensor:
    """Write the values of some rows of ``weight`` to ``out`` and return it: ``quant``'s table in float32.

    weight  [N, K] any FTW format, one slot
    rows           the first one, and the one behind the last
    out     [rows, K] f32 or bf16, any row stride

    Safe under graph capture. Raises ValueError if rows lie outside of weight or out is of another shape.
    """
    (first, end), columns = rows, weight.shape[1]
    if not 0 <= first < end <= weight.shape[0]:
        raise ValueError(f"rows must lie in 0 to {weight.shape[0]}, got {first} to {end}")
    expect("out", out, "float32 bfloat16", (end - first, columns))
    planes, strides = kernel_planes(weight)
    dequantize_kernel[(ceil_div(end - first, _BN), ceil_div(columns, _BK))](
        out, planes, first, end - first, columns, out.stride(0), strides,
        FORMAT=weight.format, PLAIN=weight.format in PLAIN_FORMATS, BN=_BN, BK=_BK,
        TAIL=weight.format == "nvfp4" and columns % 32 != 0,
    )  # fmt: skip
    return out


def dequantize(weight: DeviceMatrix, pool: object = None) -> torch.Tensor:
    """Return the values of ``weight``, of one slot, in float32; see dequantize_ref."""
    out = torch.empty(weight.shape, dtype=torch.float32, device=weight.planes[0].device)
    return dequantize_into(weight, (0, weight.shape[0]), out=out)
