"""The product of one row of floats and a quantised weight, without tensor cores, inside of a kernel.

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

from ftd.kernels.weight_tile_triton import load_items, load_pairs, spread

VECTOR_FORMATS: frozenset[str] = frozenset({"q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k"})

# x times 2^100 and a code times 2^-149 are both far from the ends of float32's range.
UNIT = tl.constexpr(2.0**-49)


@triton.jit
def quarters(values, W: tl.constexpr):
    """Return the four columns of ``values`` [W, 4]."""
    even, odd = tl.split(tl.reshape(values, (W, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def field(words, x, PLACE: tl.constexpr, MASK: tl.constexpr, WORTH: tl.constexpr = 0):
    """Return the codes at bit PLACE of ``words`` [BN, W] times x [W], times 2^WORTH * UNIT."""
    codes = (words & (MASK << PLACE)).to(tl.float32, bitcast=True)
    return codes * (x * 2.0 ** (100 + WORTH - PLACE))[None, :]


@triton.jit
def load_four(x, norm_weight, starts, K, EVEN: tl.constexpr, NORM: tl.constexpr, W: tl.constexpr):
    """Return x at four columns from each of ``starts`` [W], times the norm's weights, and sums of squares."""
    columns = starts[:, None] + tl.arange(0, 4)[None, :]
    if EVEN:
        values = tl.load(x + columns).to(tl.float32)
    else:
        values = tl.load(x + columns, mask=columns < K, other=0.0).to(tl.float32)
    squares = tl.zeros((W,), tl.float32)
    if NORM:
        squares = tl.sum(values * values, axis=1)
        if EVEN:
            values *= tl.load(norm_weight + columns)
        else:
            values *= tl.load(norm_weight + columns, mask=columns < K, other=0.0)
    a, b, c, d = quarters(values, W)
    return a, b, c, d, squares


@triton.jit
def super_scales(plane, stride, rows, first, K, BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr):
    """Return the numbers of blocks of 256 values, for each of their 8 blocks, [BN, BK/32] f32."""
    item = first // 256 + tl.arange(0, BK // 256)
    numbers = load_items(plane, stride, rows, item, item < K // 256, EVEN)
    return spread(numbers.to(tl.float32), BN, BK // 256, 8)


@triton.jit
def word_scales(
    planes, strides, rows, first, K,
    FORMAT: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Return the factors of low and high nibbles and the summand (or a factor), [BN, BK/32] f32 each."""
    block = first // 32 + tl.arange(0, BK // 32)
    inside = block < K // 32
    if FORMAT == "q6_k":
        d = super_scales(planes[3], strides[3], rows, first, K, BN, BK, EVEN)
        both = load_pairs(planes[2], strides[2], rows, block, inside, EVEN)
        low, high = both.to(tl.int8).to(tl.float32) * d, (both >> 16).to(tl.int8).to(tl.float32) * d
        least = low
    elif FORMAT == "q4_k" or FORMAT == "q5_k":
        S: tl.constexpr = 1 if FORMAT == "q4_k" else 2
        d = super_scales(planes[S + 2], strides[S + 2], rows, first, K, BN, BK, EVEN)
        low = load_items(planes[S], strides[S], rows, block, inside, EVEN).to(tl.float32) * d
        d = super_scales(planes[S + 3], strides[S + 3], rows, first, K, BN, BK, EVEN)
        least = load_items(planes[S + 1], strides[S + 1], rows, block, inside, EVEN).to(tl.float32) * -d
        high = low
    else:
        D: tl.constexpr = 2 if FORMAT == "q5_0" or FORMAT == "q5_1" else 1
        low = load_items(planes[D], strides[D], rows, block, inside, EVEN).to(tl.float32)
        high, least = low, low
        if FORMAT == "q4_1" or FORMAT == "q5_1":
            least = load_items(planes[D + 1], strides[D + 1], rows, block, inside, EVEN).to(tl.float32)
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
        block = first // 32 + tl.arange(0, BK // 32)
        bits = load_items(planes[1], strides[1], rows, block, block < K // 32, EVEN)
        bits = spread(bits, BN, BK // 32, 4) >> (word % 4 * 4)[None, :]
    return bits


@triton.jit
def vector_products(
    x, planes, norm_weight,
    rows, begin, end, K, strides,
    FORMAT: tl.constexpr, NORM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    EVEN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Return W x [BN, 1] over columns begin to end, and with NORM the sum of squares [1] of x."""
    BYTES: tl.constexpr = FORMAT == "q8_0"
    FIVE: tl.constexpr = FORMAT == "q5_0" or FORMAT == "q5_1" or FORMAT == "q5_k"
    LEAST: tl.constexpr = FORMAT == "q4_1" or FORMAT == "q5_1" or FORMAT == "q4_k" or FORMAT == "q5_k"
    OFFSET: tl.constexpr = 128.0 if BYTES else 8.0 if FORMAT == "q4_0" else 16.0 if FORMAT == "q5_0" else 32.0
    # Words of a tile, and of a block.
    W: tl.constexpr = BK // 4 if BYTES else BK // 8
    BLOCK: tl.constexpr = 8 if BYTES else 4
    BLOCKS: tl.constexpr = BK // 32
    starts = (planes[0] + rows.to(tl.int64)[:, None] * strides[0]).to(tl.pointer_type(tl.int32))
    sums = tl.zeros((BN, W), tl.float32)
    squares = tl.zeros((W,), tl.float32)
    for first in tl.range(begin, end, BK, num_stages=STAGES):
        word = first // 32 * BLOCK + tl.arange(0, W)
        inside = word < K // 32 * BLOCK
        words = load_items(starts, 0, rows, word, inside, EVEN)
        low_scale, high_scale, least = word_scales(planes, strides, rows, first, K, FORMAT, BN, BK, EVEN)
        # One multiply-add a code, onto what the offset takes from all codes of a word.
        if BYTES:
            words ^= -0x7F7F7F80
            upper = words >> 8
            a, b, c, d, more = load_four(x, norm_weight, word * 4, K, EVEN, NORM, W)
            part = ((a + b + c + d) * (-OFFSET * UNIT))[None, :] + field(words, a, 0, 255)
            part += field(words, b, 8, 255)
            part += field(words, c, 16, 255)
            part += field(upper, d, 16, 255)
            sums += part * spread(low_scale, BN, BLOCKS, BLOCK)
        else:
            upper = words >> 8
            low = word // 4 * 32 + word % 4 * 4
            a, b, c, d, more = load_four(x, norm_weight, low, K, EVEN, NORM, W)
            e, f, g, h, others = load_four(x, norm_weight, low + 16, K, EVEN, NORM, W)
            more += others
            low_total, high_total = a + b + c + d, e + f + g + h
            part = field(words, a, 0, 15)
            if not LEAST:
                total = low_total if FORMAT == "q6_k" else low_total + high_total
                part += (total * (-OFFSET * UNIT))[None, :]
            part += field(words, b, 8, 15)
            part += field(words, c, 16, 15)
            part += field(upper, d, 16, 15)
            if FORMAT == "q6_k":
                bits = high_bits(planes, strides, rows, first, word, K, FORMAT, BN, BK, EVEN)
                upper_bits = bits >> 8
                part += field(bits, a, 0, 3, 4)
                part += field(bits, b, 8, 3, 4)
                part += field(bits, c, 16, 3, 4)
                part += field(upper_bits, d, 16, 3, 4)
                sums += part * spread(low_scale, BN, BLOCKS, BLOCK)
                part = (high_total * (-OFFSET * UNIT))[None, :] + field(bits, e, 4, 3, 4)
                part += field(bits, f, 12, 3, 4)
                part += field(bits, g, 20, 3, 4)
                part += field(upper_bits, h, 20, 3, 4)
            if FIVE:
                bits = high_bits(planes, strides, rows, first, word, K, FORMAT, BN, BK, EVEN)
                part += field(bits, a, 0, 1, 4)
                part += field(bits, b, 1, 1, 4)
                part += field(bits, c, 2, 1, 4)
                part += field(bits, d, 3, 1, 4)
                part += field(bits, e, 16, 1, 4)
                part += field(bits, f, 17, 1, 4)
                part += field(bits, g, 18, 1, 4)
                part += field(bits, h, 19, 1, 4)
            part += field(words, e, 4, 15)
            part += field(words, f, 12, 15)
            part += field(words, g, 20, 15)
            part += field(upper, h, 20, 15)
            sums += part * spread(high_scale, BN, BLOCKS, BLOCK)
            if LEAST:
                sums += ((low_total + high_total) * UNIT)[None, :] * spread(least, BN, BLOCKS, BLOCK)
        squares += more
    return (tl.sum(sums, axis=1) * (1.0 / UNIT))[:, None], tl.sum(squares, axis=0)[None]
