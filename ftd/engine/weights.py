"""The tensors of one model by name, with presence and shape checked at each look-up."""

from collections.abc import Mapping

import numpy as np

from ftd.engine.graphs import Floats
from ftd.errors import InvalidFtw
from ftd.kernels import dispatch
from ftd.kernels.quant import QuantMatrix


class Weights:
    """Tensors are views; whoever read them owns the memory. Remembers which were asked for."""

    def __init__(self, tensors: Mapping[str, QuantMatrix]) -> None:
        self.tensors = tensors
        self.used: set[str] = set()

    def matrix(self, name: str, rows: int, columns: int) -> QuantMatrix:
        """Return tensor ``name`` [rows, columns]; InvalidFtw if it is missing or shaped otherwise."""
        tensor = self.tensors.get(name)
        if tensor is None:
            raise InvalidFtw(f"the model has no tensor {name}")
        if tensor.shape != (rows, columns):
            raise InvalidFtw(f"tensor {name} must be {[rows, columns]}: {list(tensor.shape)}")
        self.used.add(name)
        return tensor

    def vector(self, name: str, size: int) -> Floats:
        """Return tensor ``name`` as [size] f32; InvalidFtw if it is missing or shaped otherwise."""
        tensor = self.matrix(name, 1, size)
        if tensor.format == "f32":
            row: Floats = tensor.planes[0][0].astype(np.float32, copy=False)
            return row
        dequantized: Floats = dispatch.get("dequantize")(tensor)[0]
        return dequantized

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def unused(self) -> list[str]:
        """Return the names of tensors that nobody asked for."""
        return sorted(set(self.tensors) - self.used)

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.num_bytes for tensor in self.tensors.values())
