"""Products of few rows and a weight of codes, read in words that tensor cores take as they lie in registers.

A thread loads four words, 16 bytes, of one row; four threads side by side load a *unit* of 16 words: 128
four-bit codes or 64 bytes. A tensor core wants each of the four to hold other columns of a row than these. So
the columns of a unit are taken in another order, the same for x, and the rows of a tile too: then the codes
that a thread loaded, once they are bfloat16, are what it must hand over, and nothing moves between threads.

    column of a unit   t * 32 + high * 16 + j * 4 + p * 2 + odd    of thread t's word j the high or low nibble
    taken as the       j * 32 + high * 16 + t * 4 + odd * 2 + p    of byte p * 2 + odd
    ``is_wide``        j * 32 + t * 8 + high * 4 + odd * 2 + p
    bytes              t * 16 + j * 4 + p * 2 + odd, taken as j * 16 + t * 4 + odd * 2 + p
"""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl

from ftd.kernels.formats_triton import (
    code_offset,
    has_high_bits,
    has_least,
    is_four_bits,
    is_fp4,
    num_words,
)
from ftd.kernels.quant import FORMATS
from ftd.kernels.row_product_triton import high_bits
from ftd.kernels.weight_tile_triton import LIFT, LIFT_HIGH, half_scales, load_items, scaled, small_floats

CODE_FORMATS: frozenset[str] = frozenset(FORMATS) - {"f32", "f16", "bf16", "fp8_b128"}


@triton.constexpr_function
def unit_columns(format_name: str) -> int:
    """Return the columns of a unit, 16 words."""
    return 64 if format_name == "q8_0" else 128


@triton.constexpr_function
def is_wide(format_name: str) -> bool:
    """Return whether a thread hands over eight neighbouring columns at a time, not four.

    So Triton decides where bytes are loaded. Another order gives the same sums, with moves between threads.
    """
    return format_name in ("mxfp4", "q4_k", "q5_k")


@triton.jit
def load_order(BN: tl.constexpr, WARPS: tl.constexpr):
    """Return which of a tile's rows each that is loaded is, [BN]; a tensor core's 16 come of two loads."""
    i = tl.arange(0, BN)
    repeat, warp = i // (8 * WARPS), i // 8 % WARPS
    return (repeat // 2 * WARPS + warp) * 16 + repeat % 2 * 8 + i % 8


@triton.jit
def pairs_of(words, bits, FORMAT: tl.constexpr, HIGH: tl.constexpr, ODD: tl.constexpr):
    """Return the codes of the low or HIGH nibbles of the even or ODD bytes of words, in pairs.

    Of formats without bits of their own high nibbles stay in bits 4-7, and fp4 keeps all bits.
    """
    pairs = words >> (8 * ODD)
    if FORMAT == "q6_k":
        more = (bits >> (8 * ODD + 4 * HIGH)) & 0x00030003
        pairs = ((pairs >> (4 * HIGH)) & 0x000F000F) | (more << 4)
    elif has_high_bits(FORMAT):
        # Bit 0 to bit 4, bit 2 to bit 20
        more = ((bits >> (16 * HIGH + ODD)) & 5) * 0x00040010
        pairs = ((pairs >> (4 * HIGH)) & 0x000F000F) | (more & 0x00100010)
    elif not is_fp4(FORMAT):
        pairs &= 0x00F000F0 if HIGH else 0x000F000F
    return pairs


@triton.jit
def nibbles(
    words, bits, scale, least,
    FORMAT: tl.constexpr, HIGH: tl.constexpr, ODD: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Return the values of the low or HIGH nibbles of the even or ODD bytes of a unit, [BN, 32] bf16."""
    LEAST: tl.constexpr = has_least(FORMAT)
    OFFSET: tl.constexpr = code_offset(FORMAT)
    pairs = pairs_of(words, bits, FORMAT, HIGH, ODD)
    LIFTED: tl.constexpr = LIFT_HIGH if HIGH and is_four_bits(FORMAT) else LIFT
    if is_fp4(FORMAT):
        values = small_floats(pairs, scale, 4 * HIGH, BN, 4, tl.bfloat16, 4)
    else:
        values = scaled(pairs, scale, least, LIFTED, OFFSET, LEAST, BN, 4, 4, tl.bfloat16)
    return values


@triton.jit
def unit_tile(
    planes, strides, rows, first, K,
    FORMAT: tl.constexpr, BN: tl.constexpr, WARPS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Return the values of a unit of ``rows`` (in the order of loads), rows and columns in theirs, as bf16.

    [BN, 128], for bytes [BN, 64]. first: the unit's first column
    """
    BYTES: tl.constexpr = FORMAT == "q8_0"
    BLOCK: tl.constexpr = num_words(FORMAT, 32)
    WIDE: tl.constexpr = is_wide(FORMAT)
    REPEATS: tl.constexpr = BN // (16 * WARPS)
    starts = (planes[0] + rows.to(tl.int64)[:, None] * strides[0]).to(tl.pointer_type(tl.int32))
    word = first // 32 * BLOCK + tl.arange(0, 16)
    words = load_items(starts, 0, rows, word, word < K // 32 * BLOCK, EVEN)
    if BYTES:
        block = first // 32 + tl.arange(0, 2)
        scale = load_items(planes[1], strides[1], rows, block, block < K // 32, EVEN).to(tl.float32)
        # A signed byte with its highest bit turned is its value + 128.
        words = words ^ -0x7F7F7F80
        even = scaled(words & 0x00FF00FF, scale, scale, LIFT, 128, False, BN, 2, 8, tl.bfloat16)
        odd = scaled((words >> 8) & 0x00FF00FF, scale, scale, LIFT, 128, False, BN, 2, 8, tl.bfloat16)
        values = tl.reshape(tl.join(even, odd), (REPEATS, 2, WARPS, 8, 4, 4, 2, 2))
        values = tl.permute(values, (0, 2, 1, 3, 5, 4, 7, 6))
    else:
        low, high, least = half_scales(
            planes, strides, rows, first, K, FORMAT, BN, 128, EVEN, False, tl.bfloat16
        )
        bits = words
        if has_high_bits(FORMAT):
            bits = high_bits(planes, strides, rows, first, word, K, FORMAT, BN, 128, EVEN)
        even = nibbles(words, bits, low, least, FORMAT, 0, 0, BN)
        odd = nibbles(words, bits, low, least, FORMAT, 0, 1, BN)
        lows = tl.join(even, odd)
        even = nibbles(words, bits, high, least, FORMAT, 1, 0, BN)
        odd = nibbles(words, bits, high, least, FORMAT, 1, 1, BN)
        values = tl.join(lows, tl.join(even, odd))
        values = tl.reshape(values, (REPEATS, 2, WARPS, 8, 4, 4, 2, 2, 2))
        if WIDE:
            values = tl.permute(values, (0, 2, 1, 3, 5, 4, 8, 7, 6))
        else:
            values = tl.permute(values, (0, 2, 1, 3, 5, 8, 4, 7, 6))
    return tl.reshape(values, (BN, 64 if BYTES else 128))


@triton.jit
def unit_x(values, FORMAT: tl.constexpr, BT: tl.constexpr, UNIT: tl.constexpr):
    """Return values [BT, UNIT] as [UNIT, BT], columns in the order of ``unit_tile``."""
    if UNIT == 64:
        values = tl.permute(tl.reshape(values, (BT, 4, 4, 2, 2)), (2, 1, 4, 3, 0))
    elif is_wide(FORMAT):
        values = tl.permute(tl.reshape(values, (BT, 4, 2, 4, 2, 2)), (3, 1, 2, 5, 4, 0))
    else:
        values = tl.permute(tl.reshape(values, (BT, 4, 2, 4, 2, 2)), (3, 2, 1, 5, 4, 0))
    return tl.reshape(values, (UNIT, BT))


@triton.jit
def word_products(
    x, planes, norm_weight,
    tokens, rows, begin, end, T, K,
    x_stride, strides,
    FORMAT: tl.constexpr, NORM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BT: tl.constexpr,
    WARPS: tl.constexpr, EVEN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Return W x^T [BN, BT] over columns begin to end, and with NORM the sums of squares [BT] of x.

    rows  [BN] of the weight, of a tile's rows ``load_order``
    BK    columns of a round, one or more units
    """
    UNIT: tl.constexpr = unit_columns(FORMAT)
    inside = (tokens < T)[:, None]
    starts = x + tokens.to(tl.int64)[:, None] * x_stride
    sums = tl.zeros((BN, BT), tl.float32)
    squares = tl.zeros((BT,), tl.float32)
    for first in tl.range(begin, end, BK, num_stages=STAGES):
        for unit in tl.static_range(BK // UNIT):
            at = first + unit * UNIT
            columns = at + tl.arange(0, UNIT)
            here = inside if EVEN else inside & (columns < K)[None, :]
            values = tl.load(starts + columns[None, :], mask=here, other=0.0)
            if NORM:
                values = values.to(tl.float32)
                squares += tl.sum(values * values, axis=1)
                if EVEN:
                    values *= tl.load(norm_weight + columns)[None, :]
                else:
                    values *= tl.load(norm_weight + columns, mask=columns < K, other=0.0)[None, :]
            tile = unit_tile(planes, strides, rows, at, K, FORMAT, BN, WARPS, EVEN)
            sums = tl.dot(tile, unit_x(values.to(tl.bfloat16), FORMAT, BT, UNIT), sums)
    return sums, squares
