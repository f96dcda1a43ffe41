"""quantize_k: the definition. Formats with blocks of 256, in the operations of ggml's reference quantisers.

    q4_k q5_k   8 sub-blocks of 32: x = scale · c - min       the pair of least weighted square error of that
                of c = 0 .. 15 or 31                          of the range and 21 or 16 refitted ones near it
    q6_k        16 sub-blocks of 16: x = scale · (c - 32)     the scale of largest (Σwxc)²/Σwc², w = x², of 19

Scales (and mins) of the sub-blocks become 6 bits (q6_k: 8) under one f16 a block, then every value takes the
nearest code under the scales as stored. All sums are f32 and run from the first value of a sub-block to the
last, so arrays are [values of a sub-block, sub-blocks]: ``sum(axis=0)`` adds in that order, many at once.
"""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels.shapes import ArrayLike, expect

Floats = NDArray[np.float32]
Halves = NDArray[np.float16]
Codes = NDArray[np.uint8]
Planes = tuple[NDArray[np.generic], ...]

BLOCK = 256
_TINY = np.float32(1e-15)  # below it a sub-block counts as zeros


def check(blocks: ArrayLike, format: str) -> None:
    """Raise ValueError unless the arguments fit the contract of ``quantize_k``."""
    expect("blocks", blocks, "float32", ("M", BLOCK))
    if format not in ("q4_k", "q5_k", "q6_k"):
        raise ValueError(f"format must be q4_k, q5_k or q6_k: {format}")


def quantize_k(blocks: Floats, format: str) -> Planes:
    """Return the planes of blocks of 256 values, each with a row a block.

    blocks  [M, 256] f32   at most 1e9 in size
    format  q4_k, q5_k or q6_k
    returns the planes of ``ftd.kernels.quant`` in its order; scales that f16 cannot hold become infinite

    Bytes moved: 1024*M, and 144*M, 176*M or 210*M back.
    Raises ValueError if blocks is not f32 [M, 256] or format is another.
    """
    check(blocks, format)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        if format == "q6_k":
            return _symmetric(blocks)
        codes, rest = (
            _with_mins(blocks, 15, -1.0, 21) if format == "q4_k" else _with_mins(blocks, 31, -0.5, 16)
        )
    low = _pairs(codes & np.uint8(0x0F))
    if format == "q4_k":
        return low, *rest
    return low, np.packbits(codes >> np.uint8(4), axis=1, bitorder="little"), *rest


def _symmetric(blocks: Floats) -> Planes:
    """[blocks, 256] f32 -> codes, high, scales, d."""
    x = np.ascontiguousarray(blocks.reshape(-1, 16).T)
    fitted, codes = _fit_scale(x, 32)
    fitted = fitted.reshape(-1, 16)
    size = np.abs(fitted)
    largest = np.take_along_axis(fitted, size.argmax(axis=1, keepdims=True), axis=1)
    is_zero = np.abs(largest) < _TINY
    inverse = np.float32(-128) / largest
    d = (np.float32(1) / inverse).astype(np.float16)
    scales = np.minimum(np.rint(inverse * fitted), np.float32(127)).astype(np.int32)
    step = (d.astype(np.float32) * scales.astype(np.float32)).reshape(-1)
    nearest = np.clip(np.rint(x / step), np.float32(-32), np.float32(31)) + np.float32(32)
    six_bits = _rows(np.where(step == 0, codes, nearest))
    six_bits[is_zero[:, 0]] = 0
    scales[is_zero[:, 0]], d[is_zero[:, 0]] = 0, 0
    quarters = (six_bits >> np.uint8(4)).reshape(-1, 8, 4, 8)
    high = quarters[:, :, 0] | quarters[:, :, 1] << 2 | quarters[:, :, 2] << 4 | quarters[:, :, 3] << 6
    return _pairs(six_bits & np.uint8(0x0F)), high.reshape(-1, BLOCK // 4), scales.astype(np.int8), d


def _rows(codes: Floats) -> Codes:
    """[values of a sub-block, sub-blocks] -> [blocks, 256]."""
    return np.ascontiguousarray(codes.astype(np.uint8).T).reshape(-1, BLOCK)


def _pairs(codes: Codes) -> Codes:
    """[blocks, 256] of 4 bits -> [blocks, 128]: values j and j + 16 of a sub-block in one byte."""
    halves = codes.reshape(-1, 8, 2, 16)
    pairs: Codes = halves[:, :, 0] | halves[:, :, 1] << np.uint8(4)
    return pairs.reshape(-1, BLOCK // 2)


def _with_mins(
    blocks: Floats, top: int, first: float, tries: int
) -> tuple[Codes, tuple[Codes, Codes, Halves, Halves]]:
    """Return codes [blocks, 256], and scales and mins [blocks, 8], d and dmin [blocks, 1]."""
    x = np.ascontiguousarray(blocks.reshape(-1, 32).T)
    fitted, offsets, codes = _fit_scale_and_min(x, top, np.float32(first), tries)
    d, scales = _six_bits(fitted.reshape(-1, 8))
    dmin, mins = _six_bits(offsets.reshape(-1, 8))
    step = (d.astype(np.float32) * scales.astype(np.float32)).reshape(-1)
    low = (dmin.astype(np.float32) * mins.astype(np.float32)).reshape(-1)
    nearest = np.clip(np.rint((x + low) / step), np.float32(0), np.float32(top))
    return _rows(np.where(step == 0, codes, nearest)), (scales, mins, d, dmin)


def _six_bits(fitted: Floats) -> tuple[Halves, Codes]:
    """Return d [blocks, 1] f16 and numbers [blocks, 8] of 0 .. 63 whose product is nearest to ``fitted``."""
    largest = np.maximum(fitted.max(axis=1, keepdims=True), np.float32(0))
    inverse = np.where(largest > 0, np.float32(63) / largest, np.float32(0))
    numbers = np.rint(inverse * fitted).astype(np.int32).astype(np.uint8)
    return (largest / np.float32(63)).astype(np.float16), np.minimum(numbers, np.uint8(63))


def _fit_scale_and_min(x: Floats, top: int, first: np.float32, tries: int) -> tuple[Floats, Floats, Floats]:
    """Return scale and -min of every sub-block and its codes [32, sub-blocks] under them."""
    weights = np.sqrt((x * x).sum(axis=0) / np.float32(32)) + np.abs(x)
    sum_w, sum_x = weights.sum(axis=0), (weights * x).sum(axis=0)
    low, high = np.minimum(x.min(axis=0), np.float32(0)), x.max(axis=0)
    is_flat = high == low
    inverse = np.float32(top) / (high - low)
    scale, offset = np.float32(1) / inverse, low
    codes = np.clip(np.rint(inverse * (x - low)), np.float32(0), np.float32(top))
    error = _weighted_error(x, weights, codes, scale, offset)
    for number in range(tries):
        factor = first + np.float32(0.1) * np.float32(number) + np.float32(top)
        inverse = factor / (high - offset)  # a better offset moves the range of the tries after it
        tried = np.clip(np.rint(inverse * (x - offset)), np.float32(0), np.float32(top))
        weighted = weights * tried
        sum_l, sum_l2 = weighted.sum(axis=0), (weighted * tried).sum(axis=0)
        sum_xl = (weighted * x).sum(axis=0)
        determinant = sum_w * sum_l2 - sum_l * sum_l
        new_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant
        new_offset = (sum_l2 * sum_x - sum_l * sum_xl) / determinant
        is_above = new_offset > 0
        new_scale = np.where(is_above, sum_xl / sum_l2, new_scale)
        new_offset = np.where(is_above, np.float32(0), new_offset)
        new_error = _weighted_error(x, weights, tried, new_scale, new_offset)
        is_better = (determinant > 0) & (new_error < error)
        codes = np.where(is_better, tried, codes)
        error = np.where(is_better, new_error, error)
        scale, offset = np.where(is_better, new_scale, scale), np.where(is_better, new_offset, offset)
    return (
        np.where(is_flat, np.float32(0), scale),
        -np.where(is_flat, low, offset),
        np.where(is_flat, np.float32(0), codes),
    )


def _weighted_error(x: Floats, weights: Floats, codes: Floats, scale: Floats, offset: Floats) -> Floats:
    difference = scale * codes + offset - x
    error: Floats = (weights * (difference * difference)).sum(axis=0)
    return error


def _fit_scale(x: Floats, half: int) -> tuple[Floats, Floats]:
    """Return the scale of every sub-block and its codes [16, sub-blocks], 0 .. 2 half - 1, under it."""
    size = np.abs(x)
    largest = np.take_along_axis(x, size.argmax(axis=0)[None], axis=0)[0]
    is_zero = np.abs(largest) < _TINY
    scale = best = np.zeros_like(largest)
    codes = np.zeros_like(x)
    weighted = x * x * x
    for number in (0, *range(-9, 0), *range(1, 10)):
        inverse = -(np.float32(half) + np.float32(0.1) * np.float32(number)) / largest
        tried = np.clip(np.rint(inverse * x), np.float32(-half), np.float32(half - 1))
        sum_lx = (weighted * tried).sum(axis=0)
        sum_l2 = (x * x * tried * tried).sum(axis=0)
        if number == 0:
            scale = np.where(sum_l2 != 0, sum_lx / sum_l2, np.float32(0))
            best, codes = scale * sum_lx, tried
            continue
        is_better = (sum_l2 > 0) & (sum_lx * sum_lx > best * sum_l2)
        codes = np.where(is_better, tried, codes)
        scale = np.where(is_better, sum_lx / sum_l2, scale)
        best = np.where(is_better, scale * sum_lx, best)
    return np.where(is_zero, np.float32(0), scale), np.where(is_zero, np.float32(0), codes + np.float32(half))
