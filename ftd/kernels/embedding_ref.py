"""embedding: the definition."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels.dequantize_ref import dequantize
from ftd.kernels.quant import FORMATS, QuantMatrix
from ftd.kernels.shapes import expect, expect_range

_BLOCK_ROWS = 128  # rows that share a row of fp8_b128's scales


def check(ids: NDArray[np.int32], weight: QuantMatrix) -> None:
    """Raise ValueError unless the arguments fit the contract of ``embedding``."""
    expect("ids", ids, "int32", ("T",))
    if ids.shape[0]:
        expect_range("ids", int(ids.min()), int(ids.max()), 0, weight.shape[0] - 1)


def embedding(
    ids: NDArray[np.int32], weight: QuantMatrix, scale: float = 1.0, pool: object = None
) -> NDArray[np.float32]:
    """Return the dequantised rows of ``weight`` that ``ids`` name.

    ids     [T]    i32
    weight  [V, D] any FTW format
    scale          factor on every value (Gemma's sqrt(D))
    returns [T, D] f32

    Bytes moved: T times a row of weight, 4*T*D written.
    Raises ValueError if ids is not i32 [T] or an id lies outside 0 .. V - 1.
    """
    check(ids, weight)
    out = np.empty((ids.shape[0], weight.shape[1]), np.float32)
    for block in np.unique(ids // _BLOCK_ROWS):
        wanted = ids // _BLOCK_ROWS == block
        out[wanted] = dequantize(_rows(weight, int(block)))[ids[wanted] % _BLOCK_ROWS]
    return out * np.float32(scale)


def _rows(weight: QuantMatrix, block: int) -> QuantMatrix:
    """Return rows 128*block to 128*block + 127 of ``weight`` as a matrix of their own."""
    first = block * _BLOCK_ROWS
    last = min(first + _BLOCK_ROWS, weight.shape[0])
    planes = []
    for spec, plane in zip(FORMATS[weight.format].planes, weight.planes, strict=True):
        if spec.name == "global":
            planes.append(plane)
        elif weight.format == "fp8_b128" and spec.name == "scales":
            planes.append(plane[block : block + 1])
        else:
            planes.append(plane[first:last])
    return QuantMatrix(weight.format, (last - first, weight.shape[1]), tuple(planes))
