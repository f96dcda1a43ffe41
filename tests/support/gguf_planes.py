"""GGUF blocks to FTW planes, from GGUF's block layouts alone: an oracle for kernels, apart from ftd.ftw."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels.quant import QuantMatrix

Bytes = NDArray[np.uint8]
# name of the format: bytes of a block, values of a block
BLOCK_BYTES = {
    "q8_0": (34, 32),
    "q4_0": (18, 32),
    "q4_1": (20, 32),
    "q5_0": (22, 32),
    "q5_1": (24, 32),
    "q4_k": (144, 256),
    "q5_k": (176, 256),
    "q6_k": (210, 256),
}


def pack4(codes: Bytes) -> Bytes:
    """Pack codes [N, K] below 16 two a byte, value j of a 32-block with value j + 16."""
    blocks = codes.reshape(codes.shape[0], -1, 2, 16)
    return np.ascontiguousarray((blocks[:, :, 0] | blocks[:, :, 1] << 4).reshape(codes.shape[0], -1))


def pack_high1(codes: Bytes) -> Bytes:
    """Pack bit 4 of codes [N, K], value i of a 32-block in bit i of a little-endian u32."""
    return np.packbits(codes >> 4 & 1, axis=1, bitorder="little")


def pack_high2(codes: Bytes) -> Bytes:
    """Pack bits 4-5 of codes [N, K], values j, j + 8, j + 16, j + 24 of a 32-block in byte j."""
    parts = (codes >> 4 & 3).reshape(codes.shape[0], -1, 4, 8)
    packed = parts[:, :, 0] | parts[:, :, 1] << 2 | parts[:, :, 2] << 4 | parts[:, :, 3] << 6
    return np.ascontiguousarray(packed.reshape(codes.shape[0], -1))


def _f16(raw: Bytes, rows: int) -> NDArray[np.float16]:
    return np.ascontiguousarray(raw).view("<f2").reshape(rows, -1)


def _nibbles(raw: Bytes, rows: int) -> Bytes:
    return np.concatenate([raw & 15, raw >> 4], axis=-1).reshape(rows, -1)


def _six_bits(raw: Bytes) -> tuple[Bytes, Bytes]:
    """Return the 8 scales and 8 minimums of each 12-byte run of a super-block."""
    low, middle, top = raw[..., :4], raw[..., 4:8], raw[..., 8:]
    scales = np.concatenate([low & 63, top & 15 | low >> 6 << 4], axis=-1)
    mins = np.concatenate([middle & 63, top >> 4 | middle >> 6 << 4], axis=-1)
    return scales, mins


def _super(name: str, blocks: Bytes, rows: int) -> tuple[NDArray[np.generic], ...]:
    d, dmin = _f16(blocks[..., :2], rows), _f16(blocks[..., 2:4], rows)
    scales, mins = _six_bits(blocks[..., 4:16])
    quants = blocks[..., -128:].reshape(*blocks.shape[:2], 4, 32)
    codes = np.stack([quants & 15, quants >> 4], axis=3).reshape(*blocks.shape[:2], 8, 32)
    if name == "q5_k":
        bits = blocks[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
        codes = codes | bits << 4
    codes = codes.reshape(rows, -1)
    planes = [pack4(codes & 15), scales.reshape(rows, -1), mins.reshape(rows, -1), d, dmin]
    if name == "q5_k":
        planes.insert(1, pack_high1(codes))
    return tuple(np.ascontiguousarray(plane) for plane in planes)


def _q6_k(blocks: Bytes, rows: int) -> tuple[NDArray[np.generic], ...]:
    low = blocks[..., :128].reshape(*blocks.shape[:2], 2, 2, 32)
    high = blocks[..., 128:192].reshape(*blocks.shape[:2], 2, 1, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(4, 1)
    codes = np.concatenate([low & 15, low >> 4], axis=3) | (high >> shifts & 3) << 4
    codes = codes.reshape(rows, -1)
    scales = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8).reshape(rows, -1)
    return pack4(codes & 15), pack_high2(codes), scales, _f16(blocks[..., 208:210], rows)


def planes_of(name: str, raw: Bytes, shape: tuple[int, int]) -> QuantMatrix:
    """Return the matrix [N, K] that GGUF bytes ``raw`` of type ``name`` hold."""
    rows = shape[0]
    if name in ("f32", "f16", "bf16"):
        dtype = {"f32": "<f4", "f16": "<f2", "bf16": "<u2"}[name]
        return QuantMatrix(name, shape, (np.ascontiguousarray(raw).view(dtype).reshape(shape),))
    block_bytes, _ = BLOCK_BYTES[name]
    blocks = raw.reshape(rows, -1, block_bytes)
    planes: tuple[NDArray[np.generic], ...]
    if name in ("q4_k", "q5_k"):
        planes = _super(name, blocks, rows)
    elif name == "q6_k":
        planes = _q6_k(blocks, rows)
    elif name == "q8_0":
        codes = np.ascontiguousarray(blocks[..., 2:]).view(np.int8).reshape(shape)
        planes = (codes, _f16(blocks[..., :2], rows))
    else:
        scales = [_f16(blocks[..., :2], rows)]
        if name.endswith("_1"):
            scales.append(_f16(blocks[..., 2:4], rows))
        codes = _nibbles(blocks[..., -16:], rows)
        start = 2 * len(scales)
        high = [blocks[..., start : start + 4].reshape(rows, -1).copy()] if name.startswith("q5") else []
        planes = (pack4(codes), *high, *scales)
    return QuantMatrix(name, shape, planes)
