"""The product of one row of floats and a quantised weight, without tensor cores, inside of a dense product.

How codes are multiplied: ``row_product_triton``, whose products of experts this is for all rows of a weight,
parts of its columns, and a norm.
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
from ftd.kernels.row_product_triton import UNIT, add_high_bits, add_nibbles, field, high_bits
from ftd.kernels.weight_tile_triton import half_scales, load_items, spread


@triton.jit
def quarters(values, W: tl.constexpr):
    """Return the four columns of ``values`` [W, 4]."""
    even, odd = tl.split(tl.reshape(values, (W, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


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
def vector_products(
    x, planes, norm_weight,
    rows, begin, end, K, strides,
    FORMAT: tl.constexpr, NORM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    EVEN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Return W x [BN, 1] over columns begin to end, and with NORM the sum of squares [1] of x."""
    BYTES: tl.constexpr = FORMAT == "q8_0"
    FP4: tl.constexpr = is_fp4(FORMAT)
    LEAST: tl.constexpr = has_least(FORMAT)
    HALVES: tl.constexpr = has_halves(FORMAT)
    WIDE: tl.constexpr = has_high_bits(FORMAT)
    OFFSET: tl.constexpr = code_offset(FORMAT)
    # Words of a tile, and of a block.
    W: tl.constexpr = num_words(FORMAT, BK)
    BLOCK: tl.constexpr = num_words(FORMAT, 32)
    BLOCKS: tl.constexpr = BK // 32
    starts = (planes[0] + rows.to(tl.int64)[:, None] * strides[0]).to(tl.pointer_type(tl.int32))
    sums = tl.zeros((BN, W), tl.float32)
    squares = tl.zeros((W,), tl.float32)
    for first in tl.range(begin, end, BK, num_stages=STAGES):
        word = first // 32 * BLOCK + tl.arange(0, W)
        words = load_items(starts, 0, rows, word, word < K // 32 * BLOCK, EVEN)
        low_scale, high_scale, least = half_scales(
            planes, strides, rows, first, K, FORMAT, BN, BK, EVEN, False, tl.float32
        )
        # One multiply-add a code, onto what the offset takes from all codes of a word.
        if BYTES:
            words ^= -0x7F7F7F80
            a, b, c, d, more = load_four(x, norm_weight, word * 4, K, EVEN, NORM, W)
            part = ((a + b + c + d) * (-OFFSET * UNIT))[None, :] + field(words, a, 0, 255)
            part += field(words, b, 8, 255)
            part += field(words, c, 16, 255)
            part += field(words >> 8, d, 16, 255)
            sums += part * spread(low_scale, BN, BLOCKS, BLOCK)
        else:
            low = word // 4 * 32 + word % 4 * 4
            a, b, c, d, more = load_four(x, norm_weight, low, K, EVEN, NORM, W)
            e, f, g, h, others = load_four(x, norm_weight, low + 16, K, EVEN, NORM, W)
            more += others
            if WIDE:
                bits = high_bits(planes, strides, rows, first, word, K, FORMAT, BN, BK, EVEN)
            total = a + b + c + d
            if not HALVES:
                total += e + f + g + h
            part = add_nibbles((total * (-OFFSET * UNIT))[None, :], words, a, b, c, d, 0, FP4)
            if WIDE:
                part = add_high_bits(part, bits, a, b, c, d, 0, FORMAT == "q6_k")
            if HALVES:
                sums += part * spread(low_scale, BN, BLOCKS, BLOCK)
                part = ((e + f + g + h) * (-OFFSET * UNIT))[None, :]
            part = add_nibbles(part, words, e, f, g, h, 4, FP4)
            if WIDE:
                part = add_high_bits(part, bits, e, f, g, h, 4, FORMAT == "q6_k")
            sums += part * spread(high_scale, BN, BLOCKS, BLOCK)
            if LEAST:
                sums += (total * UNIT)[None, :] * spread(least, BN, BLOCKS, BLOCK)
        squares += more
    return (tl.sum(sums, axis=1) * (1.0 / UNIT))[:, None], tl.sum(squares, axis=0)[None]
