"""Tiles of a weight of any FTW format as float32 or bfloat16 values, for use inside Triton kernels.

A kernel gets a weight as two tuples, its planes and their row strides (``kernel_planes``), and walks along K in
tiles of BK values. Two kinds of format:

    plain   f32 f16 bf16 q8_0 fp8_b128   ``plain_tile`` is [BN, BK], value k of the tile is value k of the row
    halves  all formats of 4 to 6 bits   ``half_tiles`` is two tiles [BN, BK/2]: one load of BK/2 code bytes gives
                                         the values of the low and of the high nibbles; ``half_columns`` says
                                         which values of the row they are

Rows are given as indices, clamped to the matrix by the caller. Columns at or behind K come out as finite numbers:
multiply them by zeros.
"""

import torch
import triton
import triton.language as tl

from ftd.kernels import interpreter  # noqa: F401  loops in kernels need it
from ftd.kernels.device_matrix import DeviceMatrix

PLAIN_FORMATS: frozenset[str] = frozenset({"f32", "f16", "bf16", "q8_0", "fp8_b128"})

# Rows and columns that share a scale of fp8_b128; a tile's K lies in one such block.
FP8_BLOCK = 128


def kernel_planes(weight: DeviceMatrix) -> tuple[tuple[torch.Tensor, ...], tuple[int, ...]]:
    """Return the planes of slot 0 as kernels take them and the items between two rows of each."""
    planes = []
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
def exponent_scale(code):
    """Return 2^(code - 127) of an exponent byte, exactly; 255 is no number."""
    bits = tl.where(code == 0, 0x00400000, code.to(tl.int32) << 23)
    return tl.where(code == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)


@triton.jit
def small_float(code):
    """Return the values of four-bit floats (2 exponent bits, 1 mantissa bit) from codes as i32."""
    bits = ((code & 8) << 28) | ((code & 7) << 22)
    # The code's exponent lies in that of a float32: 2^126 puts the bias right.
    return bits.to(tl.float32, bitcast=True) * 8.507059173023462e37


@triton.jit
def whole_number(code, OFFSET: tl.constexpr):
    """Return ``code - OFFSET`` as f32, code a u8 below 64."""
    # 0x43000000 is 128, whose last mantissa bits count whole numbers: no conversion is needed.
    bits = (code.to(tl.int32) << 16) | 0x43000000
    return bits.to(tl.float32, bitcast=True) - (128.0 + OFFSET)


@triton.jit
def plain_tile(
    planes, strides, rows, columns, first, K,
    FORMAT: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Return the values [BN, BK] of ``columns`` of ``rows``; fp8_b128 without its scale.

    first  the first column of the tile; columns = first + 0 .. BK - 1
    EVEN   no column lies behind K
    """
    pointers = planes[0] + rows.to(tl.int64)[:, None] * strides[0] + columns[None, :]
    if EVEN:
        codes = tl.load(pointers)
    else:
        codes = tl.load(pointers, mask=columns[None, :] < K, other=0)
    if FORMAT == "fp8_b128":
        return codes.to(tl.float8e4nv, bitcast=True).to(DTYPE)
    if FORMAT == "q8_0":
        block = first // 32 + tl.arange(0, BK // 32)
        scales = load_items(planes[1], strides[1], rows, block, block < K // 32, EVEN).to(tl.float32)
        return (codes.to(tl.float32) * spread(scales, BN, BK // 32, 32)).to(DTYPE)
    return codes.to(DTYPE)


@triton.jit
def load_items(plane, stride, rows, items, inside, EVEN: tl.constexpr):
    """Return ``items`` of ``rows`` of a plane; zeros where not ``inside``."""
    pointers = plane + rows.to(tl.int64)[:, None] * stride + items[None, :]
    if EVEN:
        return tl.load(pointers)
    return tl.load(pointers, mask=inside[None, :], other=0)


@triton.jit
def fp8_scale(planes, strides, rows, column):
    """Return the scales of the 128-blocks of fp8_b128 in which ``rows`` and a column lie."""
    return tl.load(planes[1] + rows // 128 * strides[1] + column // 128)


@triton.jit
def half_tiles(
    planes, strides, rows, first, K,
    FORMAT: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr, TAIL: tl.constexpr,
    DTYPE: tl.constexpr,
):  # fmt: skip
    """Return the values [BN, BK/2] of the low and of the high nibbles of the tile that begins at column first."""
    BLOCKS: tl.constexpr = BK // 32
    byte = first // 2 + tl.arange(0, BK // 2)
    block = first // 32 + tl.arange(0, BLOCKS)
    inside = block < tl.cdiv(K, 32)
    codes = load_items(planes[0], strides[0], rows, byte, byte < K // 2, EVEN)
    low, high = codes & 15, codes >> 4
    if FORMAT == "q5_0" or FORMAT == "q5_1" or FORMAT == "q5_k":
        bits = spread(load_items(planes[1], strides[1], rows, block, inside, EVEN), BN, BLOCKS, 16)
        place = (byte % 16)[None, :]
        low |= (((bits >> place) & 1) << 4).to(tl.uint8)
        high |= (((bits >> (place + 16)) & 1) << 4).to(tl.uint8)
    if FORMAT == "q6_k":
        pairs = load_items(planes[1], strides[1], rows, byte // 16 * 8 + byte % 8, byte < K // 2, EVEN)
        place = (byte % 16 // 8 * 2)[None, :].to(tl.uint8)
        low |= ((pairs >> place) & 3) << 4
        high |= ((pairs >> (place + 4)) & 3) << 4
    # Factors of the values of both nibbles, [BN, BLOCKS] f32, and the summand where there is one.
    if FORMAT == "q4_0" or FORMAT == "q4_1":
        low_scale = load_items(planes[1], strides[1], rows, block, inside, EVEN).to(tl.float32)
        high_scale = low_scale
    elif FORMAT == "q5_0" or FORMAT == "q5_1":
        low_scale = load_items(planes[2], strides[2], rows, block, inside, EVEN).to(tl.float32)
        high_scale = low_scale
    elif FORMAT == "q4_k" or FORMAT == "q5_k":
        S: tl.constexpr = 1 if FORMAT == "q4_k" else 2
        d = load_items(planes[S + 2], strides[S + 2], rows, block // 8, inside, EVEN).to(tl.float32)
        low_scale = load_items(planes[S], strides[S], rows, block, inside, EVEN).to(tl.float32) * d
        high_scale = low_scale
    elif FORMAT == "q6_k":
        d = load_items(planes[3], strides[3], rows, block // 8, inside, EVEN).to(tl.float32)
        low_scale = load_items(planes[2], strides[2], rows, block * 2, inside, EVEN).to(tl.float32) * d
        high_scale = load_items(planes[2], strides[2], rows, block * 2 + 1, inside, EVEN).to(tl.float32) * d
    elif FORMAT == "mxfp4":
        low_scale = exponent_scale(load_items(planes[1], strides[1], rows, block, inside, EVEN))
        high_scale = low_scale
    else:
        tl.static_assert(FORMAT == "nvfp4")
        factor = tl.load(planes[2])
        other = block * 2 + 1
        if TAIL:
            other = tl.where(block < K // 32, other, block * 2)
        low_scale = small8(load_items(planes[1], strides[1], rows, block * 2, inside, EVEN)) * factor
        high_scale = small8(load_items(planes[1], strides[1], rows, other, inside, EVEN)) * factor
    low_scale = spread(low_scale, BN, BLOCKS, 16)
    high_scale = spread(high_scale, BN, BLOCKS, 16)
    if FORMAT == "mxfp4" or FORMAT == "nvfp4":
        return (
            (small_float(low.to(tl.int32)) * low_scale).to(DTYPE),
            (small_float(high.to(tl.int32)) * high_scale).to(DTYPE),
        )
    OFFSET: tl.constexpr = (
        8 if FORMAT == "q4_0" else 16 if FORMAT == "q5_0" else 32 if FORMAT == "q6_k" else 0
    )
    low_value = whole_number(low, OFFSET) * low_scale
    high_value = whole_number(high, OFFSET) * high_scale
    if FORMAT == "q4_1" or FORMAT == "q5_1":
        M: tl.constexpr = 2 if FORMAT == "q4_1" else 3
        least = load_items(planes[M], strides[M], rows, block, inside, EVEN).to(tl.float32)
        least = spread(least, BN, BLOCKS, 16)
        low_value, high_value = low_value + least, high_value + least
    if FORMAT == "q4_k" or FORMAT == "q5_k":
        Z: tl.constexpr = 2 if FORMAT == "q4_k" else 3
        d_least = load_items(planes[Z + 2], strides[Z + 2], rows, block // 8, inside, EVEN).to(tl.float32)
        least = load_items(planes[Z], strides[Z], rows, block, inside, EVEN).to(tl.float32) * d_least
        least = spread(least, BN, BLOCKS, 16)
        low_value, high_value = low_value - least, high_value - least
    return low_value.to(DTYPE), high_value.to(DTYPE)


@triton.jit
def small8(code):
    """Return the values of 8-bit floats with 4 exponent bits from their codes as u8, in f32."""
    return code.to(tl.float8e4nv, bitcast=True).to(tl.float32)
