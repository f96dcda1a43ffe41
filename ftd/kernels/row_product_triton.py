"""Products of rows of a weight and a row of floats, without tensor cores, inside of a kernel.

All rows of a tile may share their floats, or each has its own: ``x`` is [1, 1] or [BN, 1] pointers.

A code inside of a 32-bit word, all other bits cleared, is a float32 as it stands: code * 2^(place - 149), if
it lies in the lowest 24 bits. So a product costs one ``and`` and one multiply-add, with a factor that is x
times the power of two that the place asks for. Scales, offsets and summands are applied to the sum of a
word's products.
"""
# Triton compiles no ``in`` and no conditional expression of loads.
# ruff: noqa: PLR1714
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl

from ftd.kernels.quant import FORMATS
from ftd.kernels.weight_tile_triton import half_scales, load_items, spread

ROW_FORMATS: frozenset[str] = frozenset(FORMATS) - {"fp8_b128"}

# x times 2^100 and a code times 2^-149 are both far from the ends of float32's range.
UNIT = tl.constexpr(2.0**-49)


@triton.jit
def field(words, x, PLACE: tl.constexpr, MASK: tl.constexpr, WORTH: tl.constexpr = 0):
    """Return the codes at bit PLACE of ``words`` [BN, W] times x, times 2^WORTH * UNIT."""
    codes = (words & (MASK << PLACE)).to(tl.float32, bitcast=True)
    return codes * (x * 2.0 ** (100 + WORTH - PLACE))


@triton.jit
def small_field(words, x, PLACE: tl.constexpr):
    """Return the four-bit floats at bit PLACE of ``words`` [BN, W] times x, times UNIT."""
    # The sign to bit 31, copied on the way to bits 25-30; its place and those of the three bits below stay.
    codes = ((words << (28 - PLACE)) >> 6) & -0x7E400000
    return codes.to(tl.float32, bitcast=True) * (x * 2.0**77)


@triton.jit
def add_nibbles(part, words, a, b, c, d, HIGH: tl.constexpr, FP4: tl.constexpr):
    """Return part plus the low or high nibbles of the four bytes of ``words`` times a, b, c, d."""
    if FP4:
        part += small_field(words, a, HIGH)
        part += small_field(words, b, 8 + HIGH)
        part += small_field(words, c, 16 + HIGH)
        part += small_field(words, d, 24 + HIGH)
    else:
        part += field(words, a, HIGH, 15)
        part += field(words, b, 8 + HIGH, 15)
        part += field(words, c, 16 + HIGH, 15)
        part += field(words >> 8, d, 16 + HIGH, 15)
    return part


@triton.jit
def add_high_bits(part, bits, a, b, c, d, HIGH: tl.constexpr, TWO: tl.constexpr):
    """Return part plus 16 times the codes' high bits (TWO of each, or one), as ``high_bits`` gives them."""
    if TWO:
        part += field(bits, a, HIGH, 3, 4)
        part += field(bits, b, 8 + HIGH, 3, 4)
        part += field(bits, c, 16 + HIGH, 3, 4)
        part += field(bits >> 8, d, 16 + HIGH, 3, 4)
    else:
        part += field(bits, a, 4 * HIGH, 1, 4)
        part += field(bits, b, 4 * HIGH + 1, 1, 4)
        part += field(bits, c, 4 * HIGH + 2, 1, 4)
        part += field(bits, d, 4 * HIGH + 3, 1, 4)
    return part


@triton.jit
def load_four(x, starts, K, EVEN: tl.constexpr, W: tl.constexpr):
    """Return x at four columns from each of ``starts`` [W], each [1 or BN, W] f32."""
    columns = (starts[:, None] + tl.arange(0, 4)[None, :])[None, :, :]
    if EVEN:
        values = tl.load(x[:, :, None] + columns)
    else:
        values = tl.load(x[:, :, None] + columns, mask=columns < K, other=0.0)
    even, odd = tl.split(tl.reshape(values.to(tl.float32), (x.shape[0], W, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def high_bits(
    planes, strides, rows, first, word, K,
    FORMAT: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Return the bits of codes above the fourth, for each word of nibbles, [BN, BK/8] i32.

    q6_k: those of a byte's nibbles at the places of the nibbles' lowest bits. Others: those of the low
    nibbles of the four bytes in bits 0-3, those of the high ones in bits 16-19.
    """
    if FORMAT == "q6_k":
        starts = (planes[1] + rows.to(tl.int64)[:, None] * strides[1]).to(tl.pointer_type(tl.int32))
        bits = load_items(starts, 0, rows, word // 4 * 2 + word % 2, word < K // 8, EVEN)
        bits = bits >> (word % 4 // 2 * 2)[None, :]
    else:
        block = first // 32 + tl.arange(0, BK // 32)
        bits = load_items(planes[1], strides[1], rows, block, block < K // 32, EVEN)
        bits = spread(bits, BN, BK // 32, 4) >> (word % 4 * 4)[None, :]
    return bits


@triton.jit
def code_part(
    x, planes, strides, rows, first, K,
    FORMAT: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Return what the BK columns from ``first`` give, for each word of codes: [BN, W] f32, times UNIT."""
    BYTES: tl.constexpr = FORMAT == "q8_0"
    FP4: tl.constexpr = FORMAT == "mxfp4" or FORMAT == "nvfp4"
    LEAST: tl.constexpr = FORMAT == "q4_1" or FORMAT == "q5_1" or FORMAT == "q4_k" or FORMAT == "q5_k"
    HALVES: tl.constexpr = FORMAT == "q6_k" or FORMAT == "nvfp4"
    WIDE: tl.constexpr = FORMAT == "q6_k" or FORMAT == "q5_k" or FORMAT == "q5_0" or FORMAT == "q5_1"
    OFFSET: tl.constexpr = (
        0 if LEAST or FP4 else 128 if BYTES else 8 if FORMAT == "q4_0" else 16 if FORMAT == "q5_0" else 32
    )
    # Words of a tile, and of a block.
    W: tl.constexpr = BK // 4 if BYTES else BK // 8
    BLOCK: tl.constexpr = 8 if BYTES else 4
    BLOCKS: tl.constexpr = BK // 32
    starts = (planes[0] + rows.to(tl.int64)[:, None] * strides[0]).to(tl.pointer_type(tl.int32))
    word = first // 32 * BLOCK + tl.arange(0, W)
    words = load_items(starts, 0, rows, word, word < K // 32 * BLOCK, EVEN)
    low_scale, high_scale, least = half_scales(
        planes, strides, rows, first, K, FORMAT, BN, BK, EVEN, False, tl.float32
    )
    # One multiply-add a code, onto what the offset takes from all codes of a word.
    if BYTES:
        words ^= -0x7F7F7F80
        a, b, c, d = load_four(x, word * 4, K, EVEN, W)
        part = (a + b + c + d) * (-OFFSET * UNIT) + field(words, a, 0, 255)
        part += field(words, b, 8, 255)
        part += field(words, c, 16, 255)
        part += field(words >> 8, d, 16, 255)
        sums = part * spread(low_scale, BN, BLOCKS, BLOCK)
    else:
        low = word // 4 * 32 + word % 4 * 4
        a, b, c, d = load_four(x, low, K, EVEN, W)
        e, f, g, h = load_four(x, low + 16, K, EVEN, W)
        if WIDE:
            bits = high_bits(planes, strides, rows, first, word, K, FORMAT, BN, BK, EVEN)
        total = a + b + c + d
        if not HALVES:
            total += e + f + g + h
        part = add_nibbles(total * (-OFFSET * UNIT), words, a, b, c, d, 0, FP4)
        if WIDE:
            part = add_high_bits(part, bits, a, b, c, d, 0, FORMAT == "q6_k")
        if HALVES:
            sums = part * spread(low_scale, BN, BLOCKS, BLOCK)
            part = (e + f + g + h) * (-OFFSET * UNIT)
        part = add_nibbles(part, words, e, f, g, h, 4, FP4)
        if WIDE:
            part = add_high_bits(part, bits, e, f, g, h, 4, FORMAT == "q6_k")
        part = part * spread(high_scale, BN, BLOCKS, BLOCK)
        if HALVES:
            sums += part
        else:
            sums = part
        if LEAST:
            sums += total * UNIT * spread(least, BN, BLOCKS, BLOCK)
    return sums


@triton.jit
def row_products(
    x, planes, strides, rows, K,
    FORMAT: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Return W x [BN] f32; planes are pointers, or [BN, 1] pointers where each row has its own."""
    PLAIN: tl.constexpr = FORMAT == "f32" or FORMAT == "f16" or FORMAT == "bf16"
    ITEMS: tl.constexpr = BK // 4 if FORMAT == "q8_0" else BK // 8
    sums = tl.zeros((BN, ITEMS), tl.float32)
    for first in tl.range(0, K, BK, num_stages=STAGES):
        if PLAIN:
            columns = first + tl.arange(0, BK)
            values = load_items(planes[0], strides[0], rows, columns, columns < K, EVEN).to(tl.float32)
            if EVEN:
                values *= tl.load(x + columns[None, :]).to(tl.float32)
            else:
                values *= tl.load(x + columns[None, :], mask=(columns < K)[None, :], other=0.0).to(tl.float32)
            sums += tl.sum(tl.reshape(values, (BN, ITEMS, 8)), axis=2)
        else:
            sums += code_part(x, planes, strides, rows, first, K, FORMAT, BN, BK, EVEN)
    total = tl.sum(sums, axis=1)
    if not PLAIN:
        total *= 1.0 / UNIT
    return total
