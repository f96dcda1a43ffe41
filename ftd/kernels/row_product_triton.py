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

from ftd.kernels.formats_triton import (
    code_offset,
    has_halves,
    has_high_bits,
    has_least,
    is_fp4,
    num_words,
    scale_plane,
)
from ftd.kernels.quant import FORMATS
from ftd.kernels.weight_tile_triton import exponent_scale, float8, load_items, scale_pair

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
def load_four(x, starts, inside, EVEN: tl.constexpr):
    """Return x at four columns from each of ``starts`` [W] on, each [1 or BN, W] f32; zeros if not inside."""
    if x.dtype.element_ty == tl.bfloat16:
        # Four of them are one number of 64 bits
        fours = x.to(tl.pointer_type(tl.int64)) + (starts // 4)[None, :]
        values = tl.load(fours) if EVEN else tl.load(fours, mask=inside[None, :], other=0)
        low, high = values.to(tl.int32), (values >> 32).to(tl.int32)
        first = (low << 16).to(tl.float32, bitcast=True)
        second = (low & -0x10000).to(tl.float32, bitcast=True)
        third = (high << 16).to(tl.float32, bitcast=True)
        fourth = (high & -0x10000).to(tl.float32, bitcast=True)
    else:
        at = x + starts[None, :]
        first = tl.load(at, mask=inside[None, :], other=0.0).to(tl.float32)
        second = tl.load(at + 1, mask=inside[None, :], other=0.0).to(tl.float32)
        third = tl.load(at + 2, mask=inside[None, :], other=0.0).to(tl.float32)
        fourth = tl.load(at + 3, mask=inside[None, :], other=0.0).to(tl.float32)
    return first, second, third, fourth


@triton.jit
def word_scales(planes, strides, rows, block, inside, FORMAT: tl.constexpr, EVEN: tl.constexpr):
    """Return the factors of both nibbles' values and the summand (or some factor), [BN, W] f32 each."""
    if FORMAT == "mxfp4":
        low = exponent_scale(load_items(planes[1], strides[1], rows, block, inside, EVEN), False)
        high, least = low, low
    elif FORMAT == "nvfp4":
        factor = tl.load(planes[2])
        low = float8(load_items(planes[1], strides[1], rows, block * 2, inside, EVEN)) * factor
        high = float8(load_items(planes[1], strides[1], rows, block * 2 + 1, inside, EVEN)) * factor
        least = low
    elif FORMAT == "q6_k":
        d = load_items(planes[3], strides[3], rows, block // 8, inside, EVEN).to(tl.float32)
        low = load_items(planes[2], strides[2], rows, block * 2, inside, EVEN).to(tl.float32) * d
        high = load_items(planes[2], strides[2], rows, block * 2 + 1, inside, EVEN).to(tl.float32) * d
        least = low
    elif FORMAT == "q4_k" or FORMAT == "q5_k":
        S: tl.constexpr = scale_plane(FORMAT)
        d = load_items(planes[S + 2], strides[S + 2], rows, block // 8, inside, EVEN).to(tl.float32)
        low = load_items(planes[S], strides[S], rows, block, inside, EVEN).to(tl.float32) * d
        d = load_items(planes[S + 3], strides[S + 3], rows, block // 8, inside, EVEN).to(tl.float32)
        least = load_items(planes[S + 1], strides[S + 1], rows, block, inside, EVEN).to(tl.float32) * -d
        high = low
    else:
        low, least = scale_pair(planes, strides, rows, block, inside, FORMAT, EVEN)
        high = low
    return low, high, least


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
        bits = load_items(planes[1], strides[1], rows, word // 4, word < K // 8, EVEN)
        bits = bits >> (word % 4 * 4)[None, :]
    return bits


@triton.jit
def code_part(
    x, planes, strides, rows, first, K,
    FORMAT: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Return what the BK columns from ``first`` give, for each word of codes: [BN, W] f32, times UNIT."""
    BYTES: tl.constexpr = FORMAT == "q8_0"
    FP4: tl.constexpr = is_fp4(FORMAT)
    LEAST: tl.constexpr = has_least(FORMAT)
    HALVES: tl.constexpr = has_halves(FORMAT)
    WIDE: tl.constexpr = has_high_bits(FORMAT)
    OFFSET: tl.constexpr = code_offset(FORMAT)
    # Words of a tile, and of a block.
    W: tl.constexpr = num_words(FORMAT, BK)
    BLOCK: tl.constexpr = num_words(FORMAT, 32)
    starts = (planes[0] + rows.to(tl.int64)[:, None] * strides[0]).to(tl.pointer_type(tl.int32))
    word = first // 32 * BLOCK + tl.arange(0, W)
    inside = word < K // 32 * BLOCK
    words = load_items(starts, 0, rows, word, inside, EVEN)
    low_scale, high_scale, least = word_scales(planes, strides, rows, word // BLOCK, inside, FORMAT, EVEN)
    # One multiply-add a code, onto what the offset takes from all codes of a word.
    if BYTES:
        words ^= -0x7F7F7F80
        a, b, c, d = load_four(x, word * 4, inside, EVEN)
        part = (a + b + c + d) * (-OFFSET * UNIT) + field(words, a, 0, 255)
        part += field(words, b, 8, 255)
        part += field(words, c, 16, 255)
        part += field(words >> 8, d, 16, 255)
        sums = part * low_scale
    else:
        low = word // 4 * 32 + word % 4 * 4
        a, b, c, d = load_four(x, low, inside, EVEN)
        e, f, g, h = load_four(x, low + 16, inside, EVEN)
        if WIDE:
            bits = high_bits(planes, strides, rows, first, word, K, FORMAT, BN, BK, EVEN)
        total = a + b + c + d
        if not HALVES:
            total += e + f + g + h
        part = add_nibbles(total * (-OFFSET * UNIT), words, a, b, c, d, 0, FP4)
        if WIDE:
            part = add_high_bits(part, bits, a, b, c, d, 0, FORMAT == "q6_k")
        if HALVES:
            sums = part * low_scale
            part = (e + f + g + h) * (-OFFSET * UNIT)
        part = add_nibbles(part, words, e, f, g, h, 4, FP4)
        if WIDE:
            part = add_high_bits(part, bits, e, f, g, h, 4, FORMAT == "q6_k")
        part = part * high_scale
        if HALVES:
            sums += part
        else:
            sums = part
        if LEAST:
            sums += total * UNIT * least
    return sums


@triton.jit
def row_products(
    x, planes, strides, rows, K,
    FORMAT: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Return W x [BN] f32; planes are pointers, or [BN, 1] pointers where each row has its own."""
    PLAIN: tl.constexpr = FORMAT == "f32" or FORMAT == "f16" or FORMAT == "bf16"
    ITEMS: tl.constexpr = num_words(FORMAT, BK)
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
