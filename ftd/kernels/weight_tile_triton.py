"""Tiles of a weight of any FTW format as float32 or bfloat16 values, for use inside Triton kernels.

A kernel gets a weight as two tuples, its planes and their row strides (``kernel_planes``), and walks along
K in tiles of BK values. Two kinds of format:

    plain   f32 f16 bf16 q8_0 fp8_b128   ``plain_tile`` is [BN, BK], value k of the tile is value k of the row
    halves  all formats of 4 to 6 bits   ``half_tiles`` is two tiles [BN, BK/2]: one load of BK/2 code bytes
                                         gives the values of the low and of the high nibbles;
                                         ``half_columns`` says which values of the row they are

Rows are given as indices, clamped to the matrix by the caller. Columns at or behind K come out as finite
numbers: multiply them by zeros.

Codes become bfloat16 without conversions, two at a time. Two bytes are loaded as one number and spread to
the halves of an i32. There a code c is, read as bfloat16, the tiny number c * 2^-133, for any c below 256; a
multiplication by 2^127 and an addition, both exact, give (c - offset) / 64; a multiplication by 64 times the
scale gives the value.
"""
# Triton compiles no ``in`` and no conditional expression of loads.
# ruff: noqa: PLR1714, SIM108
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl

from ftd.kernels import interpreter  # noqa: F401  loops and bfloat16 in kernels need it
from ftd.kernels.device_matrix import DeviceMatrix
from ftd.kernels.formats_triton import (
    code_offset,
    has_high_bits,
    has_least,
    is_four_bits,
    is_fp4,
    scale_plane,
)

PLAIN_FORMATS: frozenset[str] = frozenset({"f32", "f16", "bf16", "q8_0", "fp8_b128"})

# Rows and columns that share a scale of fp8_b128; a tile's K lies in one such block.
FP8_BLOCK = 128

# 2^127 brings the tiny numbers of codes to 64ths of whole numbers; a code in bits 4-7 is 16 times as large.
LIFT = tl.constexpr(2.0**127)
LIFT_HIGH = tl.constexpr(2.0**123)
# The bits of a four-bit float in the last exponent bits of a bfloat16 are its value times 2^-126.
LIFT_FP4 = tl.constexpr(2.0**126)


def kernel_planes(weight: DeviceMatrix) -> tuple[tuple[torch.Tensor, ...], tuple[int, ...]]:
    """Return the planes of slot 0 as kernels take them and the items between two rows of each."""
    planes: list[torch.Tensor] = []
    for plane in weight.planes:
        first = plane[0]
        # Four bytes hold bit 4 of one block; kernels read them as one number.
        if weight.format in ("q5_0", "q5_1", "q5_k") and len(planes) == 1:
            first = first.view(torch.int32)
        planes.append(first)
    return tuple(planes), tuple(plane.stride(0) for plane in planes)


@triton.jit
def spread(items, ROWS: tl.constexpr, ITEMS: tl.constexpr, TIMES: tl.constexpr):
    """Repeat each of ``items`` [ROWS, ITEMS] for its neighbours: [ROWS, ITEMS * TIMES]."""
    wide = tl.broadcast_to(items[:, :, None], (ROWS, ITEMS, TIMES))
    return tl.reshape(wide, (ROWS, ITEMS * TIMES))


@triton.jit
def load_items(plane, stride, rows, items, inside, EVEN: tl.constexpr):
    """Return ``items`` of ``rows`` of a plane; zeros where not ``inside`` (EVEN: all are)."""
    pointers = plane + rows.to(tl.int64)[:, None] * stride + items[None, :]
    if EVEN:
        values = tl.load(pointers)
    else:
        values = tl.load(pointers, mask=inside[None, :], other=0)
    return values


@triton.jit
def load_pairs(plane, stride, rows, pairs, inside, EVEN: tl.constexpr):
    """Return pairs of bytes of ``rows`` of a plane, the first in bits 0-7 of an i32, the second in 16-23.

    Bits 8-15 and 24-31 hold the second and zeros. ``pairs``: where, in pairs from a row's first byte.
    """
    starts = (plane + rows.to(tl.int64)[:, None] * stride).to(tl.pointer_type(tl.uint16))
    if EVEN:
        values = tl.load(starts + pairs[None, :])
    else:
        values = tl.load(starts + pairs[None, :], mask=inside[None, :], other=0)
    values = values.to(tl.int32)
    return (values << 8) | values


@triton.jit
def as_bfloat16(pairs, ROWS: tl.constexpr, PAIRS: tl.constexpr):
    """Return the low and high halves of i32s [ROWS, PAIRS] as bfloat16 neighbours [ROWS, 2 * PAIRS]."""
    halves = tl.join(pairs.to(tl.int16), (pairs >> 16).to(tl.int16))
    return tl.reshape(halves, (ROWS, PAIRS * 2)).to(tl.bfloat16, bitcast=True)


@triton.jit
def half_columns(first, K, BK: tl.constexpr, TAIL: tl.constexpr):
    """Return the columns [BK/2] of the low and of the high nibbles of the tile that begins at column first.

    TAIL: K is an odd multiple of 16, and 8 bytes hold the last 16 values.
    """
    byte = first // 2 + tl.arange(0, BK // 2)
    low = byte // 16 * 32 + byte % 16
    high = low + 16
    if TAIL:
        low = tl.where(byte < K // 2, low, K)
        high = tl.where(byte < K // 32 * 16, high, low + 8)
    return low, high


@triton.jit
def exponent_scale(code, EXACT: tl.constexpr):
    """Return 2^(code - 127) of an exponent byte; if not EXACT, 0 gives 0 and 255, no number, infinity."""
    bits = code.to(tl.int32) << 23
    if EXACT:
        bits = tl.where(code == 0, 0x00400000, bits)
        bits = tl.where(code == 255, 0x7FC00000, bits)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def float8(code):
    """Return the values of 8-bit floats with 4 exponent bits from their codes as u8, in f32."""
    return code.to(tl.float8e4nv, bitcast=True).to(tl.float32)


@triton.jit
def fp8_scale(planes, strides, rows, column):
    """Return the scales of the 128-blocks of fp8_b128 in which ``rows`` and a column lie."""
    return tl.load(planes[1] + rows // 128 * strides[1] + column // 128)


@triton.jit
def scaled(
    pairs, scale, least,
    LIFTED: tl.constexpr, OFFSET: tl.constexpr, LEAST: tl.constexpr,
    ROWS: tl.constexpr, BLOCKS: tl.constexpr, BLOCK_PAIRS: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Return (code - OFFSET) * scale (+ least if LEAST) of whole-number codes in pairs.

    pairs         [ROWS, BLOCKS * BLOCK_PAIRS] i32
    scale, least  [ROWS, BLOCKS] f32
    LIFTED        what brings the codes to 64ths
    """
    VALUES: tl.constexpr = BLOCK_PAIRS * 2
    codes = as_bfloat16(pairs, ROWS, BLOCKS * BLOCK_PAIRS)
    if tl.float32 == DTYPE:
        values = (codes.to(tl.float32) * LIFTED * 64.0 - OFFSET) * spread(scale, ROWS, BLOCKS, VALUES)
        if LEAST:
            values += spread(least, ROWS, BLOCKS, VALUES)
    else:
        # With a summand, codes are centred first: what is added then is small, and so is its rounding.
        CENTRE: tl.constexpr = 8 if LEAST else OFFSET
        values = codes * LIFTED - CENTRE / 64
        values = values * spread((scale * 64.0).to(tl.bfloat16), ROWS, BLOCKS, VALUES)
        if LEAST:
            values += spread((least + CENTRE * scale).to(tl.bfloat16), ROWS, BLOCKS, VALUES)
    return values


@triton.jit
def small_floats(
    pairs, scale,
    SHIFT: tl.constexpr, BN: tl.constexpr, BLOCKS: tl.constexpr, DTYPE: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr = 8,
):  # fmt: skip
    """Return the values of four-bit floats (2 exponent bits, 1 mantissa bit) in bits SHIFT to SHIFT + 3.

    pairs [BN, BLOCKS * BLOCK_PAIRS] i32, scale [BN, BLOCKS]; other bits of pairs are ignored
    """
    # -0x7fff8000 is 0x80008000, the signs; 0x01c0 are two exponent bits and a mantissa bit.
    pairs = ((pairs << (12 - SHIFT)) & -0x7FFF8000) | ((pairs << (6 - SHIFT)) & 0x01C001C0)
    values = as_bfloat16(pairs, BN, BLOCKS * BLOCK_PAIRS).to(DTYPE) * LIFT_FP4
    return values * spread(scale.to(DTYPE), BN, BLOCKS, 2 * BLOCK_PAIRS)


@triton.jit
def plain_tile(
    planes, strides, rows, columns, first, K,
    FORMAT: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Return the values [BN, BK] of ``columns`` of ``rows``; fp8_b128 without its scale.

    first  the first column of the tile; columns = first + 0 .. BK - 1
    EVEN   no column lies behind K
    """
    if FORMAT == "q8_0":
        pair = first // 2 + tl.arange(0, BK // 2)
        block = first // 32 + tl.arange(0, BK // 32)
        codes = load_pairs(planes[0], strides[0], rows, pair, pair < K // 2, EVEN)
        scales = load_items(planes[1], strides[1], rows, block, block < K // 32, EVEN).to(tl.float32)
        # A signed byte with its highest bit turned is its value + 128.
        codes = (codes & 0x00FF00FF) ^ 0x00800080
        values = scaled(codes, scales, scales, LIFT, 128, False, BN, BK // 32, 16, DTYPE)
    else:
        codes = load_items(planes[0], strides[0], rows, columns, columns < K, EVEN)
        if FORMAT == "fp8_b128":
            codes = codes.to(tl.float8e4nv, bitcast=True)
        values = codes.to(DTYPE)
    return values


@triton.jit
def half_codes(
    planes, strides, rows, first, K,
    FORMAT: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Return the codes of the low and of the high nibbles in pairs, [BN, BK/4] i32 each.

    Four-bit codes of high nibbles stay in bits 4-7, all others are in the lowest bits. Other bits are
    cleared, but not those of fp4 formats.
    """
    pair = first // 4 + tl.arange(0, BK // 4)
    codes = load_pairs(planes[0], strides[0], rows, pair, pair < K // 4, EVEN)
    place = (pair % 8)[None, :]
    if is_fp4(FORMAT):
        low, high = codes, codes
    elif FORMAT == "q6_k":
        # Byte j of a block's 8 holds bits 4-5 of the values j, j + 8, j + 16, j + 24.
        bits = load_pairs(planes[1], strides[1], rows, pair // 8 * 4 + pair % 4, pair < K // 4, EVEN)
        bits = bits >> (place // 4 * 2)
        low = (codes & 0x000F000F) | ((bits & 0x00030003) << 4)
        high = ((codes >> 4) & 0x000F000F) | (bits & 0x00300030)
    elif has_high_bits(FORMAT):
        block = first // 32 + tl.arange(0, BK // 32)
        bits = load_items(planes[1], strides[1], rows, block, block < K // 32, EVEN)
        bits = spread(bits, BN, BK // 32, 8) >> (place * 2)
        # Two bits times 2^4 + 2^19: the first to bit 4, the second to bit 20.
        low = (codes & 0x000F000F) | (((bits & 3) * 0x00080010) & 0x00100010)
        high = ((codes >> 4) & 0x000F000F) | ((((bits >> 16) & 3) * 0x00080010) & 0x00100010)
    else:
        low, high = codes & 0x000F000F, codes & 0x00F000F0
    return low, high


@triton.jit
def super_scales(plane, stride, rows, first, K, BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr):
    """Return the numbers that blocks of 256 values have, for each block of 32, [BN, BK/32] f32."""
    if BK % 256 == 0:
        item = first // 256 + tl.arange(0, BK // 256)
        numbers = load_items(plane, stride, rows, item, item < K // 256, EVEN)
        numbers = spread(numbers.to(tl.float32), BN, BK // 256, 8)
    else:
        item = (first // 32 + tl.arange(0, BK // 32)) // 8
        numbers = load_items(plane, stride, rows, item, item < K // 256, EVEN).to(tl.float32)
    return numbers


@triton.jit
def scale_pair(planes, strides, rows, block, inside, FORMAT: tl.constexpr, EVEN: tl.constexpr):
    """Return the factor and the summand (or the factor again) of each ``block`` of 32, f32.

    Of formats whose blocks have these alone, neither halves nor super blocks.
    """
    S: tl.constexpr = scale_plane(FORMAT)
    scale = load_items(planes[S], strides[S], rows, block, inside, EVEN).to(tl.float32)
    least = scale
    if has_least(FORMAT):
        least = load_items(planes[S + 1], strides[S + 1], rows, block, inside, EVEN).to(tl.float32)
    return scale, least


@triton.jit
def half_scales(
    planes, strides, rows, first, K,
    FORMAT: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr, TAIL: tl.constexpr,
    DTYPE: tl.constexpr,
):  # fmt: skip
    """Return the factors of both nibbles' values and the summand (or some factor), [BN, BK/32] f32 each."""
    block = first // 32 + tl.arange(0, BK // 32)
    inside = block < tl.cdiv(K, 32)
    if FORMAT == "mxfp4":
        low = load_items(planes[1], strides[1], rows, block, inside, EVEN)
        low = exponent_scale(low, tl.float32 == DTYPE)
        high, least = low, low
    elif FORMAT == "nvfp4":
        factor = tl.load(planes[2])
        if TAIL:
            # Rows of an odd number of scales; the last block of 16 has one for its low and its high nibbles.
            second = tl.where(block < K // 32, block * 2 + 1, block * 2)
            low = load_items(planes[1], strides[1], rows, block * 2, inside, EVEN)
            high = load_items(planes[1], strides[1], rows, second, inside, EVEN)
        else:
            both = load_pairs(planes[1], strides[1], rows, block, inside, EVEN)
            low, high = both.to(tl.uint8), (both >> 16).to(tl.uint8)
        low, high = float8(low) * factor, float8(high) * factor
        least = low
    elif FORMAT == "q6_k":
        d = super_scales(planes[3], strides[3], rows, first, K, BN, BK, EVEN)
        both = load_pairs(planes[2], strides[2], rows, block, inside, EVEN)
        low, high = both.to(tl.int8).to(tl.float32) * d, (both >> 16).to(tl.int8).to(tl.float32) * d
        least = low
    elif FORMAT == "q4_k" or FORMAT == "q5_k":
        S: tl.constexpr = scale_plane(FORMAT)
        d = super_scales(planes[S + 2], strides[S + 2], rows, first, K, BN, BK, EVEN)
        low = load_items(planes[S], strides[S], rows, block, inside, EVEN).to(tl.float32) * d
        d = super_scales(planes[S + 3], strides[S + 3], rows, first, K, BN, BK, EVEN)
        least = load_items(planes[S + 1], strides[S + 1], rows, block, inside, EVEN).to(tl.float32) * -d
        high = low
    else:
        low, least = scale_pair(planes, strides, rows, block, inside, FORMAT, EVEN)
        high = low
    return low, high, least


@triton.jit
def half_tiles(
    planes, strides, rows, first, K,
    FORMAT: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr, TAIL: tl.constexpr,
    DTYPE: tl.constexpr,
):  # fmt: skip
    """Return the values [BN, BK/2] of the low and of the high nibbles of the tile that begins at first."""
    BLOCKS: tl.constexpr = BK // 32
    low, high = half_codes(planes, strides, rows, first, K, FORMAT, BN, BK, EVEN)
    low_scale, high_scale, least = half_scales(
        planes, strides, rows, first, K, FORMAT, BN, BK, EVEN, TAIL, DTYPE
    )
    if is_fp4(FORMAT):
        low = small_floats(low, low_scale, 0, BN, BLOCKS, DTYPE)
        high = small_floats(high, high_scale, 4, BN, BLOCKS, DTYPE)
    else:
        LEAST: tl.constexpr = has_least(FORMAT)
        OFFSET: tl.constexpr = code_offset(FORMAT)
        HIGH: tl.constexpr = LIFT_HIGH if is_four_bits(FORMAT) else LIFT
        low = scaled(low, low_scale, least, LIFT, OFFSET, LEAST, BN, BLOCKS, 8, DTYPE)
        high = scaled(high, high_scale, least, HIGH, OFFSET, LEAST, BN, BLOCKS, 8, DTYPE)
    return low, high
