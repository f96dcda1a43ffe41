"""Quantise floats to the planes of a format, bit for bit as ggml's reference quantisers do.

    q8_0   d = max|x| / 127                        c = round half away from zero (x / d)
    q4_0   d = (the x of largest |x|) / -8         c = min(15, trunc(x / d + 8.5))

x / d is computed as x * (1 / d) in f32, with 0 for 1 / 0, and d is stored as f16.
"""

import numpy as np
from numpy.typing import NDArray

from ftd.errors import InvalidCheckpoint
from ftd.kernels.quant import FORMATS, QuantMatrix

QUANTIZED = ("q8_0", "q4_0")
BLOCK = 32
KEPT = ("mlp.gate.weight", "mlp.shared_expert_gate.weight")
MAX_F16 = 65504.0


def as_f32(rows: NDArray[np.generic]) -> NDArray[np.float32]:
    """Return rows of f32, f16 or bf16 (as u16) as f32, which holds all of them exactly."""
    if rows.dtype == np.uint16:
        return (rows.astype(np.uint32) << 16).view(np.float32)
    return rows.astype(np.float32, copy=False)


def target(name: str, format: str, columns: int, quantization: str | None) -> str:
    """Return the format of the float matrix ``name`` after quantisation.

    Routers, which decide by small differences, and rows that are no whole blocks keep ``format``; embeddings
    and the output stay at q8_0.
    """
    if quantization is None or columns % BLOCK or name.endswith(KEPT):
        return format
    return "q8_0" if name.endswith(("embed_tokens.weight", "lm_head.weight")) else quantization


def quantize(rows: NDArray[np.float32], format: str) -> QuantMatrix:
    """Return ``rows`` [N, K] f32, K a multiple of 32, in ``format``."""
    blocks = rows.reshape(-1, BLOCK)
    if not np.isfinite(blocks).all():
        raise InvalidCheckpoint(f"a value that is not finite cannot be quantised to {format}")
    with np.errstate(over="ignore", invalid="ignore"):  # 1 / d of the smallest numbers is infinite there too
        scales, codes = _PLANES[format](blocks)
    if np.abs(scales).max(initial=0) > MAX_F16:
        raise InvalidCheckpoint(f"values are too large for the scales of {format}: {np.abs(blocks).max():g}")
    num_rows = len(rows)
    return QuantMatrix(
        format,
        (num_rows, rows.shape[1]),
        (codes.reshape(num_rows, -1), scales.astype(np.float16).reshape(num_rows, -1)),
    )


def plane_of(matrix: QuantMatrix, name: str) -> NDArray[np.generic]:
    """Return the plane ``name`` of a matrix."""
    names = [plane.name for plane in FORMATS[matrix.format].planes]
    return matrix.planes[names.index(name)]


def _inverse(scales: NDArray[np.float32]) -> NDArray[np.float32]:
    with np.errstate(divide="ignore", over="ignore"):
        return np.where(scales == 0, np.float32(0), np.float32(1) / scales)


def _q8_0(blocks: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.int8]]:
    scales = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    values = blocks * _inverse(scales)
    size = np.abs(values)
    whole = np.floor(size)
    rounded = np.sign(values) * (whole + np.floor(np.float32(2) * (size - whole)))
    return scales, rounded.astype(np.int8)


def _q4_0(blocks: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1, keepdims=True), axis=1)
    scales = largest / np.float32(-8)
    codes = np.trunc(blocks * _inverse(scales) + np.float32(8.5)).astype(np.uint8).clip(0, 15)
    return scales, codes[:, :16] | codes[:, 16:] << 4


_PLANES = {"q8_0": _q8_0, "q4_0": _q4_0}
