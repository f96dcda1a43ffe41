"""dequantize on a GPU: the exact values of a weight, tile by tile."""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl

from ftd.kernels.device_matrix import DeviceMatrix
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


@triton.jit
def dequantize_kernel(
    # pointers
    out, planes,
    # sizes
    N, K,
    # strides
    out_stride, strides,
    # meta
    FORMAT: tl.constexpr, PLAIN: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    """Write BN rows by BK columns."""
    rows = tl.program_id(0) * BN + tl.arange(0, BN)
    first = tl.program_id(1) * BK
    copy_rows(
        out, planes, tl.minimum(rows, N - 1), rows, rows < N, first, K, 1.0, out_stride, strides,
        FORMAT, PLAIN, BN, BK, TAIL,
    )  # fmt: skip


def dequantize(weight: DeviceMatrix, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """Return the values of ``weight``: ``quant``'s table in float32.

    weight  [N, K] any FTW format, one slot
    out     [N, K] f32, any row stride; allocated if not given
    returns out

    Safe under graph capture if ``out`` is given. Bytes moved: the planes of weight, 4*N*K written.
    """
    rows, columns = weight.shape
    if out is None:
        out = torch.empty((rows, columns), dtype=torch.float32, device=weight.planes[0].device)
    planes, strides = kernel_planes(weight)
    dequantize_kernel[(triton.cdiv(rows, _BN), triton.cdiv(columns, _BK))](
        out, planes, rows, columns, out.stride(0), strides,
        FORMAT=weight.format, PLAIN=weight.format in PLAIN_FORMATS, BN=_BN, BK=_BK,
        TAIL=weight.format == "nvfp4" and columns % 32 != 0,
    )  # fmt: skip
    return out
