"""Tensors of a checkpoint as FTW matrices: floats in slabs of rows, converted only where asked to.

f32, f16 and bf16 keep their bits (bf16 crosses as u16). Vectors become f32, which holds all of them exactly.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ftd.errors import InvalidCheckpoint, Unsupported
from ftd.ftw.fused_rows import Run, slabs
from ftd.ftw.quantize import as_f32, quantize
from ftd.ftw.safetensors import StoredTensor
from ftd.kernels.quant import FORMATS, QuantMatrix

SLAB_BYTES = 4 << 20
# dtype of a file -> (format, dtype of its codes)
FLOATS = {"F32": ("f32", "<f4"), "F16": ("f16", "<f2"), "BF16": ("bf16", "<u2")}


def check(tensor: StoredTensor, *shapes: tuple[int, ...]) -> str:
    """Return the FTW format of a float tensor that has one of ``shapes``; raise InvalidCheckpoint if not."""
    if tensor.shape not in shapes:
        raise InvalidCheckpoint(
            f"tensor {tensor.name} has shape {list(tensor.shape)} instead of {list(shapes[0])}"
        )
    if tensor.dtype not in FLOATS:
        raise Unsupported(
            f"tensor {tensor.name} has a dtype that ftd cannot run: {tensor.dtype}", "use f32, f16 or bf16"
        )
    return FLOATS[tensor.dtype][0]


def rows(tensor: StoredTensor, first: int, count: int, columns: int) -> NDArray[np.generic]:
    """Return ``count`` rows of ``columns`` values from row ``first`` on, whatever the tensor's own shape."""
    dtype = np.dtype(FLOATS[tensor.dtype][1])
    row_bytes = columns * dtype.itemsize
    return tensor.read(first * row_bytes, count * row_bytes).view(dtype).reshape(count, columns)


def matrix(values: NDArray[np.generic], format: str) -> QuantMatrix:
    """Return rows of floats in ``format``: their own, or a quantised one."""
    shape = (values.shape[0], values.shape[1])
    if FORMATS[format].block > 1:
        return quantize(as_f32(values), format)
    return QuantMatrix(format, shape, (np.ascontiguousarray(values),))


@dataclass(frozen=True, slots=True)
class Dense:
    """One dense tensor to write: rows of a stored one from ``first`` on, or ``runs`` of them, in ``format``.

    vector: becomes f32; ``plus_one`` adds one to it (Gemma multiplies by 1 + weight), ``negated_power`` makes
    x into -exp(x).
    """

    source: StoredTensor
    name: str
    format: str
    shape: tuple[int, int]
    first: int = 0
    vector: bool = False
    plus_one: bool = False
    negated_power: bool = False
    runs: tuple[Run, ...] = ()

    @property
    def source_bytes(self) -> int:
        """Bytes that are read."""
        return self.shape[0] * self.shape[1] * np.dtype(FLOATS[self.source.dtype][1]).itemsize

    def planes(self) -> list[Iterator[NDArray[np.generic]]]:
        """Return the planes, each as slabs of rows."""
        return [self._plane(index) for index in range(len(FORMATS[self.format].planes))]

    def _plane(self, index: int) -> Iterator[NDArray[np.generic]]:
        total, columns = self.shape
        for first, count in slabs(self.runs or ((self.first, total),), max(SLAB_BYTES // (columns * 4), 1)):
            values = rows(self.source, first, count, columns)
            if self.vector:
                floats = as_f32(values)
                floats = -np.exp(floats) if self.negated_power else floats
                yield floats + np.float32(1) if self.plus_one else floats
            else:
                yield matrix(values, self.format).planes[index]
