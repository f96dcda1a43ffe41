"""GGUF block types as FTW planes: the same codes and the same scales, moved from blocks into planes.

    block type   bytes of one block
    Q8_0         d f16 · 32 codes i8
    Q4_0         d f16 · 16 nibble pairs            byte j: value j low, value j + 16 high (FTW's own order)
    Q4_1         d f16 · m f16 · 16 nibble pairs
    Q5_0 Q5_1    as Q4_0 and Q4_1 with a u32 of high bits before the nibbles, bit i for value i (FTW's order)
    Q4_K         d f16 · dmin f16 · 12 bytes of 6-bit scales and mins · 128 nibble pairs
    Q5_K         as Q4_K with 32 bytes of high bits before the nibbles: bit b of byte i for value i of block b
    Q6_K         128 nibble pairs · 64 bytes of high bits · 16 scales i8 · d f16

The nibbles of Q4_K and Q5_K pair value i of an even sub-block of 32 with value i of the next; those of Q6_K
pair values 64 apart. Both are paired again as FTW wants it. Every function returns one plane and is exact.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ftd.errors import Unsupported

Bytes = NDArray[np.uint8]
_Plane = Callable[[Bytes], Bytes]

FORMAT_BY_TYPE = {
    "F32": "f32",
    "F16": "f16",
    "BF16": "bf16",
    "Q8_0": "q8_0",
    "Q4_0": "q4_0",
    "Q4_1": "q4_1",
    "Q5_0": "q5_0",
    "Q5_1": "q5_1",
    "Q4_K": "q4_k",
    "Q5_K": "q5_k",
    "Q6_K": "q6_k",
}


def format_of(ggml_type: str, name: str) -> str:
    """Return the FTW format that holds ``ggml_type``; raise Unsupported with the name of the tensor."""
    if ggml_type not in FORMAT_BY_TYPE:
        raise Unsupported(
            f"tensor {name} has a block type that ftd cannot run: {ggml_type}",
            f"use a model in one of {' '.join(FORMAT_BY_TYPE)}",
        )
    return FORMAT_BY_TYPE[ggml_type]


def plane(ggml_type: str, name: str, blocks: Bytes) -> Bytes:
    """Return the bytes of plane ``name``.

    blocks  [blocks, block_bytes] u8   as in the file
    returns [blocks, plane bytes of a block] u8, contiguous
    """
    return np.ascontiguousarray(_PLANES[ggml_type][name](blocks))


def _part(start: int, stop: int) -> _Plane:
    return lambda blocks: blocks[:, start:stop]


def _scales_6bit(packed: Bytes) -> Bytes:
    low, high = packed[:, 0:4], packed[:, 8:12]
    return np.concatenate((low & 63, (high & 15) | (low >> 6 << 4)), axis=1)


def _mins_6bit(packed: Bytes) -> Bytes:
    low, high = packed[:, 4:8], packed[:, 8:12]
    return np.concatenate((low & 63, (high >> 4) | (low >> 6 << 4)), axis=1)


def _codes_k(nibbles: Bytes) -> Bytes:
    """[blocks, 128] with sub-blocks paired -> [blocks, 128] with halves of a sub-block paired."""
    pairs = nibbles.reshape(-1, 4, 2, 16)
    first, second = pairs[:, :, 0], pairs[:, :, 1]
    out = np.empty((len(nibbles), 4, 2, 16), np.uint8)
    np.bitwise_or(first & 15, second << 4, out=out[:, :, 0])
    np.bitwise_or(first >> 4, second & 240, out=out[:, :, 1])
    return out.reshape(-1, 128)


def _high_q5_k(bits: Bytes) -> Bytes:
    """[blocks, 32] with one bit for each sub-block -> [blocks, 32]: the u32 of sub-block 0, 1 … 7."""
    spread = np.unpackbits(bits.reshape(-1, 32, 1), axis=2, bitorder="little")
    return np.packbits(spread.transpose(0, 2, 1), axis=2, bitorder="little").reshape(-1, 32)


def _codes_q6_k(nibbles: Bytes) -> Bytes:
    """[blocks, 128]: byte i of a half holds values i and i + 64 -> nibbles of sub-blocks of 32."""
    halves = nibbles.reshape(-1, 2, 2, 2, 16)
    first, second = halves[..., 0, :], halves[..., 1, :]
    out = np.empty((len(nibbles), 2, 2, 2, 16), np.uint8)
    np.bitwise_or(first & 15, second << 4, out=out[:, :, 0])
    np.bitwise_or(first >> 4, second & 240, out=out[:, :, 1])
    return out.reshape(-1, 128)


def _high_q6_k(bits: Bytes) -> Bytes:
    """[blocks, 64]: bits 2k of byte i of a half belong to value i of sub-block k -> 8 bytes a sub-block."""
    quarters = bits.reshape(-1, 2, 4, 8)
    out = np.empty((len(bits), 2, 4, 8), np.uint8)
    for k in range(4):
        codes = (quarters >> (2 * k)) & 3
        out[:, :, k] = codes[:, :, 0] | codes[:, :, 1] << 2 | codes[:, :, 2] << 4 | codes[:, :, 3] << 6
    return out.reshape(-1, 64)


_PLANES: dict[str, dict[str, _Plane]] = {
    "F32": {"codes": _part(0, 4)},
    "F16": {"codes": _part(0, 2)},
    "BF16": {"codes": _part(0, 2)},
    "Q8_0": {"codes": _part(2, 34), "scales": _part(0, 2)},
    "Q4_0": {"codes": _part(2, 18), "scales": _part(0, 2)},
    "Q4_1": {"codes": _part(4, 20), "scales": _part(0, 2), "mins": _part(2, 4)},
    "Q5_0": {"codes": _part(6, 22), "high": _part(2, 6), "scales": _part(0, 2)},
    "Q5_1": {"codes": _part(8, 24), "high": _part(4, 8), "scales": _part(0, 2), "mins": _part(2, 4)},
    "Q4_K": {
        "codes": lambda blocks: _codes_k(blocks[:, 16:144]),
        "scales": lambda blocks: _scales_6bit(blocks[:, 4:16]),
        "mins": lambda blocks: _mins_6bit(blocks[:, 4:16]),
        "d": _part(0, 2),
        "dmin": _part(2, 4),
    },
    "Q5_K": {
        "codes": lambda blocks: _codes_k(blocks[:, 48:176]),
        "high": lambda blocks: _high_q5_k(blocks[:, 16:48]),
        "scales": lambda blocks: _scales_6bit(blocks[:, 4:16]),
        "mins": lambda blocks: _mins_6bit(blocks[:, 4:16]),
        "d": _part(0, 2),
        "dmin": _part(2, 4),
    },
    "Q6_K": {
        "codes": lambda blocks: _codes_q6_k(blocks[:, 0:128]),
        "high": lambda blocks: _high_q6_k(blocks[:, 128:192]),
        "scales": _part(192, 208),
        "d": _part(208, 210),
    },
}
