"""Quantise floats to the planes of a format, bit for bit as ggml's reference quantisers do.

    q8_0         d = max|x| / 127                   c = round half away from zero (x / d)
    q4_0 q5_0    d = (the x of largest |x|) / -8, -16         c = min(15 or 31, trunc(x / d + 8.5 or 16.5))
    q4_1 q5_1    d = (max - min) / 15, 31           c = min(15 or 31, trunc((x - min) / d + 0.5))
    mxfp4        d = 2^(floor(log2 max|x|) - 2)     c = the nearest of ±(0 ½ 1 1½ 2 3 4 6), the smaller of two
    q4_k … q6_k  ``ftd.kernels.quantize_k_ref``

x / d is computed as x * (1 / d) in f32, with 0 for 1 / 0, and d and min are stored as f16.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ftd.errors import InvalidCheckpoint
from ftd.kernels import cpu, dispatch
from ftd.kernels.quant import FORMATS, QuantMatrix

BLOCK = 32
KEPT = (
    "mlp.gate.weight",
    "mlp.shared_expert_gate.weight",
    "linear_attn.in_proj_a.weight",
    "linear_attn.in_proj_b.weight",
    "linear_attn.conv1d.weight",
)
MAX_K = 1e9  # scales of 6 or 8 bits times an f16 end before it; squares must not run over
_STEP_BLOCKS = 8192  # 1 MiB of f32: temporaries of this size stay in the second-level cache

Floats = NDArray[np.float32]
Planes = tuple[NDArray[np.generic], ...]


def as_f32(rows: NDArray[np.generic]) -> NDArray[np.float32]:
    """Return rows of f32, f16 or bf16 (as u16) as f32, which holds all of them exactly."""
    if rows.dtype == np.uint16:
        return (rows.astype(np.uint32) << 16).view(np.float32)
    return rows.astype(np.float32, copy=False)


def quantize(rows: Floats, format: str) -> QuantMatrix:
    """Return ``rows`` [N, K] f32, K a multiple of the format's block, in ``format``."""
    num_rows, columns = rows.shape
    block = FORMATS[format].block
    blocks = np.ascontiguousarray(rows).reshape(-1, block)
    step = _STEP_BLOCKS * BLOCK // block
    slices = [blocks[first : first + step] for first in range(0, len(blocks), step)]
    if len(slices) == 1:
        parts = [_part(slices[0], format)]
    else:
        with ThreadPoolExecutor(min(len(cpu.usable_cores()), len(slices)), "quantize") as threads:
            parts = list(threads.map(partial(_part, format=format), slices))
    planes = []
    for index, plane in enumerate(FORMATS[format].planes):
        joined = parts[0][index] if len(parts) == 1 else np.concatenate([part[index] for part in parts])
        planes.append(joined.reshape(-1).view(plane.dtype).reshape(num_rows, -1))
    return QuantMatrix(format, (num_rows, columns), tuple(planes))


def plane_of(matrix: QuantMatrix, name: str) -> NDArray[np.generic]:
    """Return the plane ``name`` of a matrix."""
    names = [plane.name for plane in FORMATS[matrix.format].planes]
    return matrix.planes[names.index(name)]


def _part(blocks: Floats, format: str) -> Planes:
    """Return the planes of some blocks, each [blocks, bytes or items of a block]."""
    if not np.isfinite(blocks).all():
        raise InvalidCheckpoint(f"a value that is not finite cannot be quantised to {format}")
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # as 1 / d of the smallest numbers
        planes = _PLANES[format](blocks)
    for plane, values in zip(FORMATS[format].planes, planes, strict=True):
        if plane.dtype == "<f2" and not np.isfinite(values).all():
            raise InvalidCheckpoint(
                f"values are too large for the scales of {format}: {np.abs(blocks).max():g}"
            )
    return planes


def _inverse(scales: Floats) -> Floats:
    return np.where(scales == 0, np.float32(0), np.float32(1) / scales)


def _q8_0(blocks: Floats) -> Planes:
    scales = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    values = blocks * _inverse(scales)
    size = np.abs(values)
    whole = np.floor(size)
    rounded = np.sign(values) * (whole + np.floor(np.float32(2) * (size - whole)))
    return rounded.astype(np.int8), scales.astype(np.float16)


def _signed(blocks: Floats, half: int) -> tuple[NDArray[np.uint8], Floats]:
    """Return codes 0 .. 2 half - 1 and scales: the value of largest size becomes code 0."""
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1, keepdims=True), axis=1)
    scales = largest / np.float32(-half)
    codes = np.trunc(blocks * _inverse(scales) + np.float32(half + 0.5)).astype(np.uint8)
    return codes.clip(0, 2 * half - 1), scales


def _between(blocks: Floats, top: int) -> tuple[NDArray[np.uint8], Floats, Floats]:
    """Return codes 0 .. top, scales and mins: the least value becomes code 0, the greatest ``top``."""
    mins, maxs = blocks.min(axis=1, keepdims=True), blocks.max(axis=1, keepdims=True)
    scales = (maxs - mins) / np.float32(top)
    codes = np.trunc((blocks - mins) * _inverse(scales) + np.float32(0.5)).astype(np.uint8).clip(0, top)
    return codes, scales, mins


def _nibbles(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return (codes[:, :16] & np.uint8(0x0F)) | codes[:, 16:] << np.uint8(4)


def _bit_4(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.packbits(codes >> 4, axis=1, bitorder="little")


def _q4_0(blocks: Floats) -> Planes:
    codes, scales = _signed(blocks, 8)
    return _nibbles(codes), scales.astype(np.float16)


def _q4_1(blocks: Floats) -> Planes:
    codes, scales, mins = _between(blocks, 15)
    return _nibbles(codes), scales.astype(np.float16), mins.astype(np.float16)


def _q5_0(blocks: Floats) -> Planes:
    codes, scales = _signed(blocks, 16)
    return _nibbles(codes), _bit_4(codes), scales.astype(np.float16)


def _q5_1(blocks: Floats) -> Planes:
    codes, scales, mins = _between(blocks, 31)
    return _nibbles(codes), _bit_4(codes), scales.astype(np.float16), mins.astype(np.float16)


# Halfway between neighbours of 0 ½ 1 1½ 2 3 4 6; a value in the middle takes the smaller
_E2M1_MIDDLES = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], np.float32)


def _mxfp4(blocks: Floats) -> Planes:
    largest = np.abs(blocks).max(axis=1, keepdims=True)
    exponents = np.where(largest > 0, np.floor(np.log2(largest)) + np.float32(125), np.float32(0))
    if exponents.max(initial=0) > 254:
        raise InvalidCheckpoint(f"values are too large for the scales of mxfp4: {largest.max():g}")
    exponents = np.maximum(exponents, 0)
    scales = np.ldexp(np.float32(1), exponents.astype(np.int32) - 127)
    size = np.abs(blocks)
    codes = np.zeros(blocks.shape, np.uint8)
    for middle in _E2M1_MIDDLES:
        codes += size > middle * scales
    codes |= ((blocks < 0) & (codes > 0)).astype(np.uint8) << 3
    return _nibbles(codes), exponents.astype(np.uint8)


def _k(blocks: Floats, format: str) -> Planes:
    largest = np.abs(blocks).max(initial=0)
    if largest > MAX_K:
        raise InvalidCheckpoint(f"values are too large for the scales of {format}: {largest:g}")
    planes: Planes = dispatch.get("quantize_k")(blocks, format)
    return planes


_PLANES: dict[str, Callable[[Floats], Planes]] = {
    "q8_0": _q8_0,
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "q5_0": _q5_0,
    "q5_1": _q5_1,
    **{format: partial(_k, format=format) for format in ("q4_k", "q5_k", "q6_k")},
    "mxfp4": _mxfp4,
}
