"""GGUF block types as FTW planes: the same codes and the same scales, moved from blocks into planes.

    block type   bytes of one block
    Q8_0         d f16 · 32 codes i8
    Q4_0         d f16 · 16 nibble pairs            byte j: value j low, value j + 16 high (FTW's own order)
    Q4_1         d f16 · m f16 · 16 nibble pairs
    Q5_0 Q5_1    as Q4_0 and Q4_1 with a u32 of high bits before the nibbles, bit i for value i (FTW's order)
    Q4_K         d f16 · dmin f16 · 12 bytes of 6-bit scales and mins · 128 nibble pairs
    Q5_K         as Q4_K with 32 bytes of high bits before the nibbles: bit b of byte i for value i of block b
    MXFP4        power-of-two scale u8 · 16 nibble pairs
    MXFP4_PAIRS  as MXFP4, but byte j: value 2j low, value 2j + 1 high
    Q6_K         128 nibble pairs · 64 bytes of high bits · 16 scales i8 · d f16

The nibbles of Q4_K and Q5_K pair value i of an even sub-block of 32 with value i of the next; those of Q6_K
pair values 64 apart. Both are paired again as FTW wants it. Every function returns one plane and is exact.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ftd.errors import Unsupported

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]
HalfWords = NDArray[np.uint32]
_Plane = Callable[[Bytes], Bytes]

_LOW_NIBBLES = np.uint64(0x0F0F0F0F0F0F0F0F)
_LOW_PAIRS = np.uint64(0x0303030303030303)
_LOW_BITS = np.uint64(0x0101010101010101)
_FOUR = np.uint64(4)
_GATHER = np.uint64(0x0102040810204080)

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
    "MXFP4": "mxfp4",
    "MXFP4_PAIRS": "mxfp4",
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
    """Return what copies bytes start .. stop of every block as one item: at three times a slice's speed."""
    item = "<u2" if stop - start == 2 else f"V{stop - start}"

    def copy(blocks: Bytes) -> Bytes:
        after = blocks.shape[1] - stop
        sizes = (("before", f"V{start}", start), ("item", item, 1), ("after", f"V{after}", after))
        layout = np.dtype([(name, kind) for name, kind, size in sizes if size])
        items = np.ascontiguousarray(blocks).view(layout)["item"]
        return np.ascontiguousarray(items).view(np.uint8).reshape(-1, stop - start)

    return copy


def _words(part: Bytes) -> Words:
    """[blocks, n] bytes -> [blocks, n/8] words: eight bytes are moved at once."""
    return np.ascontiguousarray(part).view("<u8")


def _six_bits(low: HalfWords, high: HalfWords, top: HalfWords) -> Bytes:
    """Return eight numbers of six bits a block: four in ``low``, four in ``high`` and ``top``.

    low, high, top  [blocks] u32   four bytes: bits 0-5; nibbles, bits 0-3; bits 6-7, bits 4-5 of the numbers
    """
    out = np.empty((len(low), 2), "<u4")
    out[:, 0] = low & 0x3F3F3F3F
    out[:, 1] = (high & 0x0F0F0F0F) | ((top >> 6) & 0x03030303) << 4
    return out.view(np.uint8)


def _scales_6bit(packed: Bytes) -> Bytes:
    words = np.ascontiguousarray(packed).view("<u4")
    return _six_bits(words[:, 0], words[:, 2], words[:, 0])


def _mins_6bit(packed: Bytes) -> Bytes:
    words = np.ascontiguousarray(packed).view("<u4")
    high: HalfWords = words[:, 2] >> np.uint32(4)
    return _six_bits(words[:, 1], high, words[:, 1])


def _repair(
    first: NDArray[np.uint64], second: NDArray[np.uint64]
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the pairs of the low nibbles of ``first`` and ``second``, and those of their high nibbles."""
    low: Words = (first & _LOW_NIBBLES) | ((second & _LOW_NIBBLES) << _FOUR)
    high: Words = ((first >> _FOUR) & _LOW_NIBBLES) | (second & ~_LOW_NIBBLES)
    return low, high


def _codes_of_neighbours(nibbles: Bytes) -> Bytes:
    """[blocks, 16] with neighbours paired -> [blocks, 16] with halves of a block paired."""
    even, odd = _repair(*_words(nibbles).T)
    pairs: NDArray[np.uint16] = even.view(np.uint8).astype("<u2")
    pairs |= odd.view(np.uint8).astype("<u2") << np.uint16(8)
    return pairs.view(np.uint8).reshape(-1, 16)


def _codes_k(nibbles: Bytes) -> Bytes:
    """[blocks, 128] with sub-blocks paired -> [blocks, 128] with halves of a sub-block paired."""
    pairs = _words(nibbles).reshape(-1, 4, 2, 2)
    out = np.empty((len(nibbles), 4, 2, 2), "<u8")
    out[:, :, 0], out[:, :, 1] = _repair(pairs[:, :, 0], pairs[:, :, 1])
    return out.view(np.uint8).reshape(-1, 128)


def _high_q5_k(bits: Bytes) -> Bytes:
    """[blocks, 32] with one bit for each sub-block -> [blocks, 32]: the u32 of sub-block 0, 1 … 7."""
    words = _words(bits)
    out = np.empty((len(bits), 8, 4), np.uint8)
    for sub_block in range(8):
        # The product gathers bit 0 of each of the eight bytes in its top byte, byte i at bit i.
        out[:, sub_block] = (((words >> sub_block) & _LOW_BITS) * _GATHER) >> 56
    return out.reshape(-1, 32)


def _codes_q6_k(nibbles: Bytes) -> Bytes:
    """[blocks, 128]: byte i of a half holds values i and i + 64 -> nibbles of sub-blocks of 32."""
    halves = _words(nibbles).reshape(-1, 2, 2, 2, 2)
    out = np.empty((len(nibbles), 2, 2, 2, 2), "<u8")
    out[:, :, 0], out[:, :, 1] = _repair(halves[..., 0, :], halves[..., 1, :])
    return out.view(np.uint8).reshape(-1, 128)


def _high_q6_k(bits: Bytes) -> Bytes:
    """[blocks, 64]: bits 2k of byte i of a half belong to value i of sub-block k -> 8 bytes a sub-block."""
    quarters = _words(bits).reshape(-1, 2, 4)
    out = np.empty((len(bits), 2, 4), "<u8")
    for k in range(4):
        codes = (quarters >> (2 * k)) & _LOW_PAIRS
        out[:, :, k] = codes[..., 0] | codes[..., 1] << 2 | codes[..., 2] << 4 | codes[..., 3] << 6
    return out.view(np.uint8).reshape(-1, 64)


_PLANES: dict[str, dict[str, _Plane]] = {
    "F32": {"codes": _part(0, 4)},
    "F16": {"codes": _part(0, 2)},
    "BF16": {"codes": _part(0, 2)},
    "Q8_0": {"codes": _part(2, 34), "scales": _part(0, 2)},
    "Q4_0": {"codes": _part(2, 18), "scales": _part(0, 2)},
    "Q4_1": {"codes": _part(4, 20), "scales": _part(0, 2), "mins": _part(2, 4)},
    "Q5_0": {"codes": _part(6, 22), "high": _part(2, 6), "scales": _part(0, 2)},
    "Q5_1": {"codes": _part(8, 24), "high": _part(4, 8), "scales": _part(0, 2), "mins": _part(2, 4)},
    "MXFP4": {"codes": _part(1, 17), "scales": _part(0, 1)},
    "MXFP4_PAIRS": {
        "codes": lambda blocks: _codes_of_neighbours(blocks[:, 1:17]),
        "scales": _part(0, 1),
    },
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
