"""matmul on a GPU: which kernel multiplies, and the memory that it needs.

Up to 64 tokens ``decode_kernel`` reads the weight once. More go through ``prefill_kernel``; where there are
many, the weight is first made bfloat16, some rows at a time, in memory kept for that.
"""

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import torch
import triton.language as tl

from ftd.kernels.dequantize_triton import dequantize_into
from ftd.kernels.device_matrix import DeviceMatrix
from ftd.kernels.early_triton import early
from ftd.kernels.product_launch import (
    DECODE_TOKENS,
    Launch,
    choose_launch,
    in_words,
    is_decode,
    squared_tiles,
)
from ftd.kernels.product_triton import SQUARES, decode_kernel, prefill_kernel
from ftd.kernels.shapes import ceil_div, expect, power_of_two
from ftd.kernels.weight_tile_triton import FP8_BLOCK, PLAIN_FORMATS, kernel_planes
from ftd.kernels.word_product_triton import unit_columns

# Room for the parts of a split product, f32: 16 tokens x 8 parts x 32,768 rows; wider weights need no split.
_PARTIAL_ITEMS = 16 * 8 * 32768
_COUNTERS = 8192
# Tiles of a product behind which a norm is folded: 32,768 rows in eights.
_SQUARED_TILES = 4096
# From so many tokens on, making a weight of so many values bfloat16 once is less work than in every tile.
UNPACK_TOKENS = 256
UNPACK_VALUES = 1 << 20
_DENSE_ITEMS = 1 << 26

Activation = Literal["", "silu", "gelu"]


class Scaling(NamedTuple):
    """What a product of at most 16 tokens leaves for the norm behind it: its sums times the norm's weights.

    weight  [N] f32
    out     [T, N] f32 or bf16, any row stride
    """

    weight: torch.Tensor
    out: torch.Tensor


class Scaled(NamedTuple):
    """That a product's rows come out of the ``Scaling`` of the one before: what is left of the norm.

    num_tiles  of that product, see ``squared_tiles``
    """

    eps: float
    num_tiles: int


class _Scratch(NamedTuple):
    """What parts of split products are stored in, and squares until the next product has read them.

    Counters are zero between calls.
    """

    partial: torch.Tensor
    counters: torch.Tensor
    squares: torch.Tensor


_scratch: dict[torch.device, _Scratch] = {}
_dense_scratch: dict[torch.device, torch.Tensor] = {}


def scratch(device: torch.device) -> _Scratch:
    """Return the device's scratch memory, allocated once (16 MiB): products run on one stream per device."""
    if device not in _scratch:
        _scratch[device] = _Scratch(
            torch.empty(_PARTIAL_ITEMS, dtype=torch.float32, device=device),
            torch.zeros(_COUNTERS, dtype=torch.int32, device=device),
            torch.zeros((_SQUARED_TILES, SQUARES.value), dtype=torch.float32, device=device),
        )
    return _scratch[device]


def dense_scratch(device: torch.device, columns: int) -> torch.Tensor:
    """Return memory for rows of ``columns`` bfloat16 values, allocated once (128 MiB)."""
    if device not in _dense_scratch:
        _dense_scratch[device] = torch.empty(_DENSE_ITEMS, dtype=torch.bfloat16, device=device)
    rows = max(1, _DENSE_ITEMS // columns)
    return _dense_scratch[device][: rows * columns].view(rows, columns)


def is_unpacked(weight: DeviceMatrix, tokens: int, precision: str) -> bool:
    """Return whether a product of so many tokens makes its weight bfloat16 first."""
    is_large = weight.shape[0] * weight.shape[1] >= UNPACK_VALUES
    return precision == "fast" and weight.format != "bf16" and tokens > UNPACK_TOKENS and is_large


def reserve(weights: Iterable[DeviceMatrix], tokens: int, precision: str, device: str) -> int:
    """Allocate what products of ``weights`` and up to ``tokens`` need beside their arguments; return bytes.

    The memory is the process's: products of all programs on a device share it.
    """
    place = torch.empty(0, device=device).device  # with its number, as tensors name it
    num_bytes = sum(memory.nbytes for memory in scratch(place))
    if any(is_unpacked(weight, tokens, precision) for weight in weights):
        num_bytes += 2 * dense_scratch(place, 1).numel()
    return num_bytes


def fitting(launch: Launch, weight: DeviceMatrix, tiles: int) -> Launch:
    """Return ``launch`` with a BK that fits the format, and parts that fit K and the scratch memory."""
    bk = min(launch.bk, FP8_BLOCK) if weight.format == "fp8_b128" else launch.bk
    splits = min(launch.splits, ceil_div(weight.shape[1], bk))
    part = (launch.bn + 1) * launch.bt
    if tiles > _COUNTERS or tiles * part * splits > _PARTIAL_ITEMS:
        splits = 1
    return launch._replace(bk=bk, splits=splits)


def dense_product(
    x: torch.Tensor,
    weight: DeviceMatrix,
    out: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    norm: tuple[torch.Tensor, float] | Scaled | None = None,
    activation: Activation = "",
    precision: str = "fast",
    add: bool = False,
    scaling: Scaling | None = None,
    launch: Launch | None = None,
) -> None:
    """Launch ``matmul`` or, with an activation, ``gated_matmul`` on checked arguments."""
    tokens, (rows, columns) = x.shape[0], weight.shape
    if not tokens:
        return
    decode = is_decode(tokens, precision)
    if launch is None and is_unpacked(weight, tokens, precision):
        unpacked_product(x, weight, out, bias=bias, activation=activation, add=add)
        return
    width = rows // 2 if activation else rows
    if launch is None:
        # The kernel of one token adds no squares up, and reads x in pieces of 64 bits
        has_norm = norm is not None and not isinstance(norm, Scaled)
        launch = choose_launch(weight, max(tokens, 2) if has_norm or x.data_ptr() % 8 else tokens, precision)
    tiles = ceil_div(width, launch.bn // 2 if activation else launch.bn)
    launch = fitting(launch, weight, tiles)
    # Who divides by the norm counts the tiles from the weight alone
    assert scaling is None or tiles == squared_tiles(weight, tokens, precision)
    assert not decode or launch.bt >= tokens
    words = launch.warps if decode and launch.bt > 1 and in_words(weight, precision) else 0
    assert not words or (launch.bk % unit_columns(weight.format) == 0 and launch.bn % (16 * words) == 0)
    planes, strides = kernel_planes(weight)
    meta: dict[str, Any] = {
        "FORMAT": weight.format,
        "PLAIN": weight.format in PLAIN_FORMATS,
        "ACTIVATION": activation,
        "BIAS": bias is not None,
        "ADD": add,
        "DTYPE": tl.float32 if precision == "f32" else tl.bfloat16,
        "BN": launch.bn,
        "BK": launch.bk,
        "BT": launch.bt,
        "EVEN": columns % launch.bk == 0,
        "TAIL": weight.format == "nvfp4" and columns % 32 != 0,
        "num_warps": launch.warps,
        "num_stages": launch.stages,
    }
    if decode:
        meta.update(WORDS=words, STAGES=launch.stages)
        grid, sizes = (tiles, launch.splits), (tokens, width, columns)
        _decode(x, planes, strides, out, bias, norm, scaling, grid, sizes, meta)
        return
    assert norm is None and scaling is None
    prefill_kernel[(tiles * ceil_div(tokens, launch.bt),)](
        x, planes, bias if bias is not None else x, out,
        tokens, width, columns, x.stride(0), strides, out.stride(0), GROUP=8, **meta,
    )  # fmt: skip


def _decode(
    x: torch.Tensor,
    planes: tuple[torch.Tensor, ...],
    strides: tuple[int, ...],
    out: torch.Tensor,
    bias: torch.Tensor | None,
    norm: tuple[torch.Tensor, float] | Scaled | None,
    scaling: Scaling | None,
    grid: tuple[int, int],
    sizes: tuple[int, int, int],
    meta: dict[str, Any],
) -> None:
    """Launch ``decode_kernel``; its memory beside the arguments is the device's ``scratch``."""
    memory = scratch(x.device)
    num_tiles = norm.num_tiles if isinstance(norm, Scaled) else 0
    norm_weight, eps = (x, norm.eps) if isinstance(norm, Scaled) else norm or (x, 0.0)
    factors, scaled = (norm_weight, out) if scaling is None else scaling
    decode_kernel[grid](
        x, planes, bias if bias is not None else x, factors, out,
        memory.partial, memory.counters, scaled, memory.squares,
        *sizes, eps, num_tiles, x.stride(0), strides, out.stride(0), scaled.stride(0),
        NORM=norm is not None and not num_tiles, SPLIT=grid[1] > 1, SCALED=scaling is not None,
        TILES=power_of_two(num_tiles) if num_tiles else 0,
        TRIGGER=early(x)["EARLY"], **meta,
    )  # fmt: skip


def unpacked_product(
    x: torch.Tensor,
    weight: DeviceMatrix,
    out: torch.Tensor,
    *,
    bias: torch.Tensor | None,
    activation: Activation,
    add: bool,
) -> None:
    """Compute ``dense_product`` of many tokens with the weight made bfloat16 first, some rows at a time."""
    rows, columns = weight.shape
    memory = dense_scratch(x.device, columns)
    halves = 2 if activation else 1
    width = rows // halves
    slices = ceil_div(rows, memory.shape[0])
    step = min(width, ceil_div(ceil_div(width, slices), 128) * 128)
    if step * halves > memory.shape[0]:
        step = memory.shape[0] // halves
    for first in range(0, width, step):
        end = min(first + step, width)
        count = end - first
        for half in range(halves):
            part = memory[half * count : (half + 1) * count]
            dequantize_into(weight, (half * width + first, half * width + end), out=part)
        dense = DeviceMatrix("bf16", (halves * count, columns), (memory[: halves * count].unsqueeze(0),))
        dense_product(
            x,
            dense,
            out[:, first:end],
            bias=None if bias is None else bias[first:end],
            activation=activation,
            add=add,
        )


def check(
    x: torch.Tensor,
    weight: DeviceMatrix,
    out_width: int,
    bias: torch.Tensor | None,
    norm: tuple[torch.Tensor, float] | Scaled | None,
    precision: str,
    out: torch.Tensor,
) -> None:
    """Raise ValueError unless the arguments fit the contracts of ``matmul`` and ``gated_matmul``."""
    expect("x", x, "float32 bfloat16", ("T", weight.shape[1]))
    if weight.num_slots != 1:
        raise ValueError(f"a dense weight lies in one slot, got {weight.num_slots}")
    if bias is not None:
        expect("bias", bias, "float32", (out_width,))
    if norm is not None:
        if not isinstance(norm, Scaled):
            expect("norm", norm[0], "float32", (weight.shape[1],))
        if x.shape[0] > DECODE_TOKENS:
            raise ValueError(f"a norm is part of products of at most {DECODE_TOKENS} tokens: {x.shape[0]}")
    if precision not in ("fast", "f32"):
        raise ValueError(f"precision must be one of fast f32, got {precision}")
    expect("out", out, "float32 bfloat16", (x.shape[0], out_width))


def matmul_into(
    x: torch.Tensor,
    weight: DeviceMatrix,
    bias: torch.Tensor | None = None,
    precision: str = "fast",
    *,
    out: torch.Tensor,
    add: bool = False,
    norm: tuple[torch.Tensor, float] | Scaled | None = None,
    scaling: Scaling | None = None,
) -> torch.Tensor:
    """Compute ``matmul`` into ``out`` and return it.

    out      [T, N] f32 or bf16, any row stride
    add      add to what is in ``out``
    norm     (weight [K] f32, eps): x is first normalised as ``rms_norm`` does; at most 16 tokens.
             ``Scaled``: x was scaled by the product before, which is divided by the norm of its sums
    scaling  of the norm behind this product; at most 16 tokens

    Safe under graph capture if ``scratch`` has been called for the device before.
    Raises ValueError as ``matmul`` does.
    """
    check(x, weight, weight.shape[0], bias, norm, precision, out)
    if scaling is not None:
        expect("scaling.weight", scaling.weight, "float32", (weight.shape[0],))
        expect("scaling.out", scaling.out, "float32 bfloat16", (x.shape[0], weight.shape[0]))
        tiles = squared_tiles(weight, x.shape[0], precision) if x.shape[0] <= DECODE_TOKENS else 0
        if not 0 < tiles <= _SQUARED_TILES:
            raise ValueError(
                f"a norm follows products of 1 to {DECODE_TOKENS} tokens and at most {_SQUARED_TILES} tiles "
                f"of rows, got {x.shape[0]} tokens and {weight.shape[0]} rows"
            )
    dense_product(x, weight, out, bias=bias, norm=norm, precision=precision, add=add, scaling=scaling)
    return out


def matmul(
    x: torch.Tensor,
    weight: DeviceMatrix,
    bias: torch.Tensor | None = None,
    precision: str = "fast",
    pool: object = None,
) -> torch.Tensor:
    """Multiply rows by a weight: ``x W^T`` (+ bias).

    x        [T, K] f32 or bf16, any row stride
    weight   [N, K] any FTW format, one slot
    bias     [N]    f32
    returns  [T, N] f32

    precision "f32": exact weights. "fast": values of x and of the weight in bfloat16. Sums are float32.

    Bytes moved: the planes of weight once, x and out (where T > 16: x once per tile of rows, from the L2).
    Raises ValueError if a shape or type does not fit or the precision is unknown.
    """
    out = torch.empty((x.shape[0], weight.shape[0]), dtype=torch.float32, device=x.device)
    return matmul_into(x, weight, bias, precision, out=out)
