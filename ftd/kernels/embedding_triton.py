"""embedding on a GPU: rows of a weight of any FTW format, dequantised."""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl

from ftd.kernels.dequantize_triton import copy_rows
from ftd.kernels.device_matrix import DeviceMatrix
from ftd.kernels.shapes import ceil_div, expect
from ftd.kernels.weight_tile_triton import PLAIN_FORMATS, kernel_planes

# Few tokens by few columns: a decode step's one row still occupies several multiprocessors.
_BT, _BK = 8, 128


@triton.jit
def embedding_kernel(
    # pointers
    ids, planes, out,
    # sizes
    T, V, K, scale,
    # strides
    strides, out_stride,
    # meta
    FORMAT: tl.constexpr, PLAIN: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    """Write BK columns of the rows of BT tokens; an id outside of the vocabulary gives some row."""
    tokens = tl.program_id(0) * BT + tl.arange(0, BT)
    rows = tl.load(ids + tokens, mask=tokens < T, other=0)
    rows = tl.minimum(tl.maximum(rows, 0), V - 1)
    copy_rows(
        out, planes, rows, tokens, tokens < T, tl.program_id(1) * BK, K, scale, out_stride, strides,
        FORMAT, PLAIN, BT, BK, TAIL,
    )  # fmt: skip


def embedding_into(
    ids: torch.Tensor, weight: DeviceMatrix, scale: float = 1.0, *, out: torch.Tensor
) -> torch.Tensor:
    """Write the dequantised rows of ``weight`` that ``ids`` name to ``out`` and return it.

    ids     [T]    i32   an id outside of 0 .. V - 1 (a padding row's) gives finite values of no meaning
    weight  [V, D] any FTW format, one slot
    scale          factor on every value
    out     [T, D] f32 or bf16, any row stride

    Safe under graph capture. Bytes moved: T rows of weight, T rows of out written.
    Raises ValueError if a shape or type does not fit.
    """
    expect("ids", ids, "int32", ("T",))
    rows, columns = weight.shape
    tokens = ids.shape[0]
    expect("out", out, "float32 bfloat16", (tokens, columns))
    if not tokens:
        return out
    planes, strides = kernel_planes(weight)
    embedding_kernel[(ceil_div(tokens, _BT), ceil_div(columns, _BK))](
        ids, planes, out, tokens, rows, columns, scale, strides, out.stride(0),
        FORMAT=weight.format, PLAIN=weight.format in PLAIN_FORMATS, BT=_BT, BK=_BK,
        TAIL=weight.format == "nvfp4" and columns % 32 != 0,
    )  # fmt: skip
    return out


def embedding(
    ids: torch.Tensor, weight: DeviceMatrix, scale: float = 1.0, pool: object = None
) -> torch.Tensor:
    """Return scale * weight[ids] in f32; see embedding_ref, and ``embedding_into`` for ids that are none."""
    expect("ids", ids, "int32", ("T",))
    out = torch.empty((ids.shape[0], weight.shape[1]), dtype=torch.float32, device=ids.device)
    return embedding_into(ids, weight, scale, out=out)
