"""The product of one token and a weight of codes: programs that stay, each with its part of x in registers.

There are as many programs as the card runs at once. Each takes BK columns of x, once, and walks along tiles
of the weight's rows, whose loads run ahead of the sums. Where K is longer than BK, a group of programs shares
its rows, and the last of them to finish adds the parts in their order. How a product of codes is computed:
``row_product_triton``.
"""
# Triton compiles no ``in`` and no conditional expression of loads.
# ruff: noqa: PLR1714, SIM108
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

import functools
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from ftd.kernels.device_matrix import DeviceMatrix
from ftd.kernels.product_triton import fetch_rows, finish, tile_rows
from ftd.kernels.row_product_triton import UNIT, add_high_bits, add_nibbles, field, high_bits
from ftd.kernels.weight_tile_triton import half_scales, kernel_planes, load_items


class TokenLaunch(NamedTuple):
    """How the kernel is launched: BN rows by BK columns, warps, stages, programs a multiprocessor."""

    bn: int
    bk: int
    warps: int
    stages: int
    programs: int


def token_launch(weight: DeviceMatrix) -> TokenLaunch:
    """Return how the product with one token is launched; measured on an H200."""
    columns = weight.shape[1]
    bk = min(triton.next_power_of_2(columns), 4096 if columns <= 4096 else 2048)
    return TokenLaunch(max(8, 32768 // bk), bk, 4, 4, 2)


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """Return how many multiprocessors a card has; the interpreter of a machine without one gets three."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 3


@triton.jit
def load_columns(x, starts, K, EVEN: tl.constexpr, W: tl.constexpr):
    """Return x at four columns from each of ``starts`` [W], each [W] f32."""
    columns = starts[:, None] + tl.arange(0, 4)[None, :]
    if EVEN:
        values = tl.load(x + columns)
    else:
        values = tl.load(x + columns, mask=columns < K, other=0.0)
    even, odd = tl.split(tl.reshape(values.to(tl.float32), (W, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def load_row(x, first, K, FORMAT: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr):
    """Return BK columns of x as words of codes take them: x of each of a word's 8 (q8_0: 4) codes, [W]."""
    if FORMAT == "q8_0":
        word = first // 4 + tl.arange(0, BK // 4)
        a, b, c, d = load_columns(x, word * 4, K, EVEN, BK // 4)
        e, f, g, h = a, b, c, d
    else:
        word = first // 8 + tl.arange(0, BK // 8)
        low = word // 4 * 32 + word % 4 * 4
        a, b, c, d = load_columns(x, low, K, EVEN, BK // 8)
        e, f, g, h = load_columns(x, low + 16, K, EVEN, BK // 8)
    return a, b, c, d, e, f, g, h


@triton.jit
def of_blocks(x, BLOCKS: tl.constexpr, BLOCK: tl.constexpr):
    """Return the sums [BLOCKS] of blocks of words [W]."""
    return tl.sum(tl.reshape(x, (BLOCKS, BLOCK)), axis=1)


@triton.jit
def block_sums(
    part, total, OFFSET: tl.constexpr, BN: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr
):
    """Return the sums [BN, BLOCKS] of words [BN, W], less the offset times x's total [BLOCKS]."""
    return tl.sum(tl.reshape(part, (BN, BLOCKS, BLOCK)), axis=2) + (total * (-OFFSET * UNIT))[None, :]


@triton.jit
def tile_sums(
    planes, strides, rows, first, K, a, b, c, d, e, f, g, h,
    FORMAT: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Return W x [BN] over BK columns; a to h as ``load_row`` gives them."""
    BYTES: tl.constexpr = FORMAT == "q8_0"
    FP4: tl.constexpr = FORMAT == "mxfp4" or FORMAT == "nvfp4"
    LEAST: tl.constexpr = FORMAT == "q4_1" or FORMAT == "q5_1" or FORMAT == "q4_k" or FORMAT == "q5_k"
    WIDE: tl.constexpr = FORMAT == "q6_k" or FORMAT == "q5_k" or FORMAT == "q5_0" or FORMAT == "q5_1"
    OFFSET: tl.constexpr = (
        0 if LEAST or FP4 else 128 if BYTES else 8 if FORMAT == "q4_0" else 16 if FORMAT == "q5_0" else 32
    )
    # Words of a tile, and of a block
    W: tl.constexpr = BK // 4 if BYTES else BK // 8
    BLOCK: tl.constexpr = 8 if BYTES else 4
    BLOCKS: tl.constexpr = BK // 32
    starts = (planes[0] + rows.to(tl.int64)[:, None] * strides[0]).to(tl.pointer_type(tl.int32))
    word = first // 32 * BLOCK + tl.arange(0, W)
    words = load_items(starts, 0, rows, word, word < K // 32 * BLOCK, EVEN)
    low_scale, high_scale, least = half_scales(
        planes, strides, rows, first, K, FORMAT, BN, BK, EVEN, False, tl.float32
    )
    # One multiply-add a code; then what the offset takes from all codes of a block
    total = of_blocks(a + b + c + d, BLOCKS, BLOCK)
    part = tl.zeros((BN, W), tl.float32)
    if BYTES:
        words ^= -0x7F7F7F80
        part += field(words, a, 0, 255)
        part += field(words, b, 8, 255)
        part += field(words, c, 16, 255)
        part += field(words >> 8, d, 16, 255)
        sums = block_sums(part, total, OFFSET, BN, BLOCKS, BLOCK) * low_scale
    else:
        others = of_blocks(e + f + g + h, BLOCKS, BLOCK)
        part = add_nibbles(part, words, a, b, c, d, 0, FP4)
        if WIDE:
            bits = high_bits(planes, strides, rows, first, word, K, FORMAT, BN, BK, EVEN)
            part = add_high_bits(part, bits, a, b, c, d, 0, FORMAT == "q6_k")
        if FORMAT == "q6_k" or FORMAT == "nvfp4":
            sums = block_sums(part, total, OFFSET, BN, BLOCKS, BLOCK) * low_scale
            part = tl.zeros((BN, W), tl.float32)
            total = others
        else:
            sums = tl.zeros((BN, BLOCKS), tl.float32)
            total += others
        part = add_nibbles(part, words, e, f, g, h, 4, FP4)
        if WIDE:
            part = add_high_bits(part, bits, e, f, g, h, 4, FORMAT == "q6_k")
        sums += block_sums(part, total, OFFSET, BN, BLOCKS, BLOCK) * high_scale
        if LEAST:
            sums += (total * UNIT)[None, :] * least
    return tl.sum(sums, axis=1) * (1.0 / UNIT)


@triton.jit
def token_kernel(
    # pointers
    x, planes, bias, out, partial, counters,
    # sizes
    N, K,
    # strides
    strides, out_stride,
    # meta
    FORMAT: tl.constexpr, ACTIVATION: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr, EVEN: tl.constexpr, STAGES: tl.constexpr,
    EARLY: tl.constexpr, LINES: tl.constexpr,
):  # fmt: skip
    """Columns part * BK … of tiles group, group + groups, …; a group's last program to finish adds its parts.

    EARLY, LINES: as ``decode_kernel``
    """
    # ---- program ids
    group, part = tl.program_id(0), tl.program_id(1)
    num_groups, num_parts = tl.num_programs(0), tl.num_programs(1)
    first = part * BK
    num_tiles = tl.cdiv(N, BN // 2 if ACTIVATION != "" else BN)
    token = tl.arange(0, 1)
    row = tl.arange(0, BN)
    if EARLY:
        if LINES > 0:
            rows = tile_rows(group, row, N, BN, ACTIVATION != "")
            fetch_rows(planes[0], strides[0], rows, first, tl.minimum(first + BK, K), 2, LINES, 1)
        # Nothing that the kernel before this one may write is touched before the wait.
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    a, b, c, d, e, f, g, h = load_row(x, first, K, FORMAT, BK, EVEN)
    # ---- loop
    for tile in tl.range(group, num_tiles, num_groups, num_stages=STAGES):
        rows = tile_rows(tile, row, N, BN, ACTIVATION != "")
        sums = tile_sums(planes, strides, rows, first, K, a, b, c, d, e, f, g, h, FORMAT, BN, BK, EVEN)
        if SPLIT:
            tl.store(partial + (tile * num_parts + part) * BN + row, sums)
        else:
            finish(sums[:, None], out, bias, tile, token, 1, N, out_stride, BN, 1, ACTIVATION, BIAS, ADD)
    # ---- parts
    if SPLIT:
        tl.debug_barrier()
        arrived = tl.atomic_add(counters + group, 1, sem="acq_rel", scope="gpu")
        if arrived == num_parts - 1:
            for tile in range(group, num_tiles, num_groups):
                sums = tl.zeros((BN,), tl.float32)
                for other in range(num_parts):
                    # Other programs wrote these: not from the first cache, which knows nothing of them.
                    place = partial + (tile * num_parts + other) * BN + row
                    sums += tl.load(place, cache_modifier=".cg")
                finish(sums[:, None], out, bias, tile, token, 1, N, out_stride, BN, 1, ACTIVATION, BIAS, ADD)
            tl.store(counters + group, 0)


def token_product(
    x: torch.Tensor,
    weight: DeviceMatrix,
    out: torch.Tensor,
    scratch: tuple[torch.Tensor, torch.Tensor],
    *,
    bias: torch.Tensor | None = None,
    activation: str = "",
    add: bool = False,
    early: bool = False,
    lines: int = 0,
    launch: TokenLaunch | None = None,
) -> None:
    """Launch ``matmul`` or ``gated_matmul`` of one row, K a multiple of 32; scratch: of ``matmul_triton``."""
    rows, columns = weight.shape
    bn, bk, warps, stages, programs = token_launch(weight) if launch is None else launch
    tiles = triton.cdiv(rows, bn)
    parts = triton.cdiv(columns, bk)
    groups = min(tiles, max(1, multiprocessors(x.device) * programs // parts))
    planes, strides = kernel_planes(weight)
    token_kernel[(groups, parts)](
        x, planes, bias if bias is not None else x, out, *scratch,
        rows // 2 if activation else rows, columns, strides, out.stride(0),
        FORMAT=weight.format, ACTIVATION=activation, BIAS=bias is not None, ADD=add, BN=bn, BK=bk,
        SPLIT=parts > 1, EVEN=columns % bk == 0, STAGES=stages, EARLY=early, LINES=lines,
        num_warps=warps, num_stages=stages, launch_pdl=early,
    )  # fmt: skip
