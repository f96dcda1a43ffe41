"""Products of rows of a weight and a row of floats, without tensor cores, inside of a kernel.

All rows of a tile may share their floats, or each has its own: ``x`` is [1, 1] or [BN, 1] pointers. So may
planes: pointers, or [BN, 1] pointers.

Words and x are loaded in pairs (of x, 64 bits twice): the same threads then have a word and its columns, and
nothing moves between them. That took the experts of a token of 30b-a3b from 23 us a layer to 16 (q4_0, H200).

A code inside of a 32-bit word, all other bits cleared, is a float32 as it stands: code * 2^(place - 149), if
it lies in the lowest 24 bits. So a product costs one ``and`` and one multiply-add, with a factor that is x
times the power of two that the place asks for. Scales, offsets and summands are applied to the sum of a
word's products.
"""
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
)
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


@triton.constexpr_function
def is_plain(format_name):
    """Return whether a weight of ``ROW_FORMATS`` is made of floats alone."""
    return format_name in ("f32", "f16", "bf16")


@triton.jit
def load_four(x, starts, inside, EVEN: tl.constexpr):
    """Return x at four columns from each of ``starts`` [W] on, for ``four_columns``; zeros if not inside."""
    if x.dtype.element_ty == tl.bfloat16:
        # Four of them are one number of 64 bits
        pairs = tl.multiple_of(tl.max_contiguous(starts // 4, 2), 2)
        fours = x.to(tl.pointer_type(tl.int64)) + pairs[None, :]
        loaded = (tl.load(fours) if EVEN else tl.load(fours, mask=inside[None, :], other=0),)
    else:
        # Two of float32 are one unsigned: the type says which they are
        twos = x.to(tl.pointer_type(tl.uint64)) + (starts // 2)[None, :]
        if EVEN:
            loaded = (tl.load(twos), tl.load(twos + 1))  # type: ignore[assignment]
        else:
            first = tl.load(twos, mask=inside[None, :], other=0)
            second = tl.load(twos + 1, mask=inside[None, :], other=0)
            loaded = (first, second)  # type: ignore[assignment]
    return loaded


@triton.jit
def four_columns(loaded):
    """Return the four columns that ``load_four`` loaded, each [1 or BN, W] f32."""
    low, high = loaded[0].to(tl.int32), (loaded[0] >> 32).to(tl.int32)
    if loaded[0].dtype == tl.uint64:
        first, second = low.to(tl.float32, bitcast=True), high.to(tl.float32, bitcast=True)
        third = loaded[1].to(tl.int32).to(tl.float32, bitcast=True)
        fourth = (loaded[1] >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    else:
        first = (low << 16).to(tl.float32, bitcast=True)
        second = (low & -0x10000).to(tl.float32, bitcast=True)
        third = (high << 16).to(tl.float32, bitcast=True)
        fourth = (high & -0x10000).to(tl.float32, bitcast=True)
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
        pair = tl.multiple_of(tl.max_contiguous(word // 4 * 2 + word % 2, 2), 2)
        bits = load_items(starts, 0, rows, pair, word < K // 8, EVEN)
        bits = bits >> (word % 4 // 2 * 2)[None, :]
    else:
        block = first // 32 + tl.arange(0, BK // 32)
        bits = spread(load_items(planes[1], strides[1], rows, block, block < K // 32, EVEN), BN, BK // 32, 4)
        bits = bits >> (word % 4 * 4)[None, :]
    return bits


@triton.jit
def tile_words(first, K, FORMAT: tl.constexpr, BK: tl.constexpr):
    """Return the words [W] of a row's codes that hold the BK columns from ``first``, and which exist."""
    BLOCK: tl.constexpr = num_words(FORMAT, 32)
    word = first // 32 * BLOCK + tl.arange(0, num_words(FORMAT, BK))
    return word, word < K // 32 * BLOCK


@triton.jit
def load_tile(
    planes, strides, rows, first, K,
    FORMAT: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Return the words, high bits and scales of the BK columns from ``first`` that ``row_products`` takes."""
    starts = (planes[0] + rows.to(tl.int64)[:, None] * strides[0]).to(tl.pointer_type(tl.int32))
    word, inside = tile_words(first, K, FORMAT, BK)
    words = load_items(starts, 0, rows, word // 2 * 2 + word % 2, inside, EVEN)
    bits = words
    if has_high_bits(FORMAT):
        bits = high_bits(planes, strides, rows, first, word, K, FORMAT, BN, BK, EVEN)
    low, high, least = half_scales(planes, strides, rows, first, K, FORMAT, BN, BK, EVEN, False, tl.float32)
    return words, bits, low, high, least


@triton.jit
def load_columns(x, begin, K, FORMAT: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr):
    """Return x at the BK columns from ``begin``: of low and of high nibbles, or twice those of bytes."""
    word, inside = tile_words(begin, K, FORMAT, BK)
    if FORMAT == "q8_0":
        low = load_four(x, word * 4, inside, EVEN)
        high = low
    else:
        first = word // 4 * 32 + word % 4 * 4
        low = load_four(x, first, inside, EVEN)
        high = load_four(x, first + 16, inside, EVEN)
    return low, high


@triton.jit
def tile_products(tile, columns, FORMAT: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Return what the columns of a tile give, for each word: [BN, W] f32, times UNIT."""
    FP4: tl.constexpr = is_fp4(FORMAT)
    HALVES: tl.constexpr = has_halves(FORMAT)
    WIDE: tl.constexpr = has_high_bits(FORMAT)
    OFFSET: tl.constexpr = code_offset(FORMAT)
    BLOCK: tl.constexpr = num_words(FORMAT, 32)
    BLOCKS: tl.constexpr = BK // 32
    words, bits, low_scale, high_scale, least = tile
    low_scale = spread(low_scale, BN, BLOCKS, BLOCK)
    a, b, c, d = four_columns(columns[0])
    # One multiply-add a code, onto what the offset takes from all codes of a word.
    if FORMAT == "q8_0":
        words ^= -0x7F7F7F80
        part = (a + b + c + d) * (-OFFSET * UNIT) + field(words, a, 0, 255)
        part += field(words, b, 8, 255)
        part += field(words, c, 16, 255)
        part += field(words >> 8, d, 16, 255)
        sums = part * low_scale
    else:
        e, f, g, h = four_columns(columns[1])
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
        part = part * spread(high_scale, BN, BLOCKS, BLOCK)
        if HALVES:
            sums += part
        else:
            sums = part
        if has_least(FORMAT):
            sums += total * UNIT * spread(least, BN, BLOCKS, BLOCK)
    return sums


@triton.jit
def row_products(
    tile, x, planes, strides, rows, begin, end, K,
    FORMAT: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Return W x [BN] f32 of the columns begin to end of codes, whose first ``load_tile`` has been.

    Each tile is asked for before the one ahead of it is multiplied.
    """
    columns = load_columns(x, begin, K, FORMAT, BK, EVEN)
    sums = tl.zeros((BN, num_words(FORMAT, BK)), tl.float32)
    # One stage: where Triton brings the tiles through shared memory, experts take twice as long
    for first in tl.range(begin + BK, end, BK, num_stages=1):
        next_tile = load_tile(planes, strides, rows, first, K, FORMAT, BN, BK, EVEN)
        next_columns = load_columns(x, first, K, FORMAT, BK, EVEN)
        sums += tile_products(tile, columns, FORMAT, BN, BK)
        tile, columns = next_tile, next_columns
    sums += tile_products(tile, columns, FORMAT, BN, BK)
    return tl.sum(sums, axis=1) * (1.0 / UNIT)


@triton.jit
def plain_products(
    x, planes, strides, rows, K, BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr
):  # fmt: skip
    """Return W x [BN] f32 of a weight of floats. Tiles asked for ahead make experts slower (H200)."""
    sums = tl.zeros((BN, BK // 8), tl.float32)
    for first in tl.range(0, K, BK, num_stages=1):
        columns = first + tl.arange(0, BK)
        values = load_items(planes[0], strides[0], rows, columns, columns < K, EVEN).to(tl.float32)
        if EVEN:
            values *= tl.load(x + columns[None, :]).to(tl.float32)
        else:
            values *= tl.load(x + columns[None, :], mask=(columns < K)[None, :], other=0.0).to(tl.float32)
        sums += tl.sum(tl.reshape(values, (BN, BK // 8, 8)), axis=2)
    return tl.sum(sums, axis=1)
