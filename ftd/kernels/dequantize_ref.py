"""dequantize: the definition of every format's values."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ftd.kernels.quant import QuantMatrix

_E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], np.float32)
_FP4 = np.concatenate([_E2M1, -_E2M1])


def e4m3_values() -> NDArray[np.float32]:
    """Return the values of the 256 codes of the 8-bit float with 4 exponent bits (0x7f, 0xff: NaN)."""
    codes = np.arange(128)
    exponent, mantissa = codes >> 3, codes & 7
    normal = (8 + mantissa) * np.exp2(exponent - 10.0)
    values = np.where(exponent > 0, normal, mantissa * np.exp2(-9.0)).astype(np.float32)
    values[127] = np.nan
    return np.concatenate([values, -values])


_E4M3 = e4m3_values()


def codes4(plane: NDArray[np.uint8], columns: int) -> NDArray[np.uint8]:
    """Return the four-bit codes [N, K] of a plane [N, K/2]: 32-blocks of low nibbles, then high nibbles.

    A last half block of 16 values (nvfp4 alone may have one) lies in 8 bytes in the same way.
    """
    rows = plane.shape[0]
    whole = columns // 32 * 16
    parts = []
    for piece, half in ((plane[:, :whole], 16), (plane[:, whole:], 8)):
        blocks = piece.reshape(rows, -1, half)
        parts.append(np.concatenate([blocks & 15, blocks >> 4], axis=2).reshape(rows, -1))
    return np.concatenate(parts, axis=1)


def _high1(plane: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return bit 4 of each code, in place, from a plane [N, K/8]."""
    return np.unpackbits(plane, axis=1, bitorder="little") << np.uint8(4)


def _high2(plane: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return bits 4-5 of each code, in place, from a plane [N, K/4]."""
    blocks = plane.reshape(plane.shape[0], -1, 1, 8)
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    return (((blocks >> shifts) & 3) << 4).astype(np.uint8).reshape(plane.shape[0], -1)


def _wide(plane: NDArray[np.generic], repeat: int) -> NDArray[np.float32]:
    """Return a plane as floats, each item repeated for the values that it covers."""
    return np.repeat(plane.astype(np.float32), repeat, axis=1)


def _dense(w: QuantMatrix) -> NDArray[np.float32]:
    codes = w.planes[0]
    if w.format == "bf16":
        return (codes.astype(np.uint32) << 16).view(np.float32)
    return codes.astype(np.float32)


def _q8_0(w: QuantMatrix) -> NDArray[np.float32]:
    codes, scales = w.planes
    return codes.astype(np.float32) * _wide(scales, 32)


def _simple(w: QuantMatrix) -> NDArray[np.float32]:
    codes = codes4(w.planes[0].view(np.uint8), w.shape[1])
    rest = w.planes[1:]
    if w.format.startswith("q5"):
        codes, rest = codes | _high1(rest[0].view(np.uint8)), rest[1:]
    if len(rest) == 2:
        return codes.astype(np.float32) * _wide(rest[0], 32) + _wide(rest[1], 32)
    offset = 16 if w.format == "q5_0" else 8
    return (codes.astype(np.float32) - np.float32(offset)) * _wide(rest[0], 32)


def _super(w: QuantMatrix) -> NDArray[np.float32]:
    codes = codes4(w.planes[0].view(np.uint8), w.shape[1])
    if w.format == "q5_k":
        codes = codes | _high1(w.planes[1].view(np.uint8))
    scales, mins, d, dmin = w.planes[-4:]
    scale = _wide(d, 8) * scales.astype(np.float32)
    minimum = _wide(dmin, 8) * mins.astype(np.float32)
    return codes.astype(np.float32) * _wide(scale, 32) - _wide(minimum, 32)


def _q6_k(w: QuantMatrix) -> NDArray[np.float32]:
    low, high, scales, d = w.planes
    codes = codes4(low.view(np.uint8), w.shape[1]) | _high2(high.view(np.uint8))
    scale = _wide(d, 16) * scales.astype(np.float32)
    return (codes.astype(np.float32) - np.float32(32)) * _wide(scale, 16)


def _mxfp4(w: QuantMatrix) -> NDArray[np.float32]:
    codes, scales = w.planes
    exponent = scales.astype(np.int32) - 127
    factor = np.where(exponent == 128, np.nan, np.ldexp(np.float64(1), exponent)).astype(np.float32)
    return _FP4[codes4(codes.view(np.uint8), w.shape[1])] * np.repeat(factor, 32, axis=1)


def _nvfp4(w: QuantMatrix) -> NDArray[np.float32]:
    codes, scales, factor = w.planes
    local = np.repeat(_E4M3[scales.view(np.uint8)], 16, axis=1)
    return _FP4[codes4(codes.view(np.uint8), w.shape[1])] * local * factor.astype(np.float32)


def _fp8_b128(w: QuantMatrix) -> NDArray[np.float32]:
    codes, scales = w.planes
    rows, columns = w.shape
    spread = np.repeat(np.repeat(scales.astype(np.float32), 128, axis=0)[:rows], 128, axis=1)[:, :columns]
    return _E4M3[codes.view(np.uint8)] * spread


_READERS: dict[str, Callable[[QuantMatrix], NDArray[np.float32]]] = {
    **dict.fromkeys(("f32", "f16", "bf16"), _dense),
    "q8_0": _q8_0,
    **dict.fromkeys(("q4_0", "q4_1", "q5_0", "q5_1"), _simple),
    **dict.fromkeys(("q4_k", "q5_k"), _super),
    "q6_k": _q6_k,
    "mxfp4": _mxfp4,
    "nvfp4": _nvfp4,
    "fp8_b128": _fp8_b128,
}


def dequantize(weight: QuantMatrix, pool: object = None) -> NDArray[np.float32]:
    """Return the exact values of ``weight``: ``quant``'s table in float32, each product and sum rounded once.

    weight  [N, K] any FTW format
    returns [N, K] f32

    Bytes moved: the planes of weight, 4*N*K written.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return _READERS[weight.format](weight)
