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

from ftd.kernels.weight_tile_triton import load_items, spread

VECTOR_FORMATS: frozenset[str] = frozenset({"q8_0", "q4_0", "q4_1", "q4_k"})

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
def field(words, x, PLACE: tl.constexpr, MASK: tl.constexpr):
    """Return the codes at bit PLACE of ``words`` [BN, W] times x [W], times UNIT."""
    codes = (words & (MASK << PLACE)).to(tl.float32, bitcast=True)
    return codes * (x * 2.0 ** (100 - PLACE))[None, :]


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
def word_scales(
    planes, strides, rows, block, inside,
    FORMAT: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Return the factor and the summand (or the factor again) of blocks of 32 values, [BN, BLOCKS] f32."""
    if FORMAT == "q4_k":
        d = load_items(planes[3], strides[3], rows, block // 8, inside, EVEN).to(tl.float32)
        scale = load_items(planes[1], strides[1], rows, block, inside, EVEN).to(tl.float32) * d
        d = load_items(planes[4], strides[4], rows, block // 8, inside, EVEN).to(tl.float32)
        least = load_items(planes[2], strides[2], rows, block, inside, EVEN).to(tl.float32) * -d
    else:
        scale = load_items(planes[1], strides[1], rows, block, inside, EVEN).to(tl.float32)
        least = scale
        if FORMAT == "q4_1":
            least = load_items(planes[2], strides[2], rows, block, inside, EVEN).to(tl.float32)
    return scale, least


@triton.jit
def vector_products(
    x, planes, norm_weight,
    rows, begin, end, K, strides,
    FORMAT: tl.constexpr, NORM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    EVEN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Return W x [BN, 1] over columns begin to end, and with NORM the sum of squares [1] of x."""
    BYTES: tl.constexpr = FORMAT == "q8_0"
    # Words of a tile, and of a block.
    W: tl.constexpr = BK // 4 if BYTES else BK // 8
    BLOCK: tl.constexpr = 8 if BYTES else 4
    BLOCKS: tl.constexpr = BK // 32
    starts = (planes[0] + rows.to(tl.int64)[:, None] * strides[0]).to(tl.pointer_type(tl.int32))
    sums = tl.zeros((BN, W), tl.float32)
    squares = tl.zeros((W,), tl.float32)
    for first in tl.range(begin, end, BK, num_stages=STAGES):
        word = first // 32 * BLOCK + tl.arange(0, W)
        block = first // 32 + tl.arange(0, BLOCKS)
        if EVEN:
            words = tl.load(starts + word[None, :])
        else:
            words = tl.load(starts + word[None, :], mask=(word < K // 32 * BLOCK)[None, :], other=0)
        scale, least = word_scales(planes, strides, rows, block, block < K // 32, FORMAT, EVEN)
        # One multiply-add a code, from what all codes of a word have too much on.
        if BYTES:
            words ^= -0x7F7F7F80
            upper = words >> 8
            a, b, c, d, more = load_four(x, norm_weight, word * 4, K, EVEN, NORM, W)
            total = a + b + c + d
            part = (total * (-128.0 * UNIT))[None, :] + field(words, a, 0, 255)
            part += field(words, b, 8, 255)
            part += field(words, c, 16, 255)
            part += field(upper, d, 16, 255)
        else:
            upper = words >> 8
            low = word // 4 * 32 + word % 4 * 4
            a, b, c, d, more = load_four(x, norm_weight, low, K, EVEN, NORM, W)
            e, f, g, h, others = load_four(x, norm_weight, low + 16, K, EVEN, NORM, W)
            more += others
            total = (a + b + c + d) + (e + f + g + h)
            part = field(words, a, 0, 15)
            if FORMAT == "q4_0":
                part += (total * (-8.0 * UNIT))[None, :]
            part += field(words, b, 8, 15)
            part += field(words, c, 16, 15)
            part += field(upper, d, 16, 15)
            part += field(words, e, 4, 15)
            part += field(words, f, 12, 15)
            part += field(words, g, 20, 15)
            part += field(upper, h, 20, 15)
        squares += more
        sums += part * spread(scale, BN, BLOCKS, BLOCK)
        if FORMAT == "q4_1" or FORMAT == "q4_k":
            sums += (total * UNIT)[None, :] * spread(least, BN, BLOCKS, BLOCK)
    return (tl.sum(sums, axis=1) * (1.0 / UNIT))[:, None], tl.sum(squares, axis=0)[None]
