"""The tensors of one model by name, with presence and shape checked at each look-up."""

from collections.abc import Iterable, Mapping

import numpy as np

from ftd.engine.graphs import Floats
from ftd.errors import InvalidFtw
from ftd.kernels import dispatch
from ftd.kernels.expert_ffn_ref import check_bank
from ftd.kernels.quant import ExpertBank, QuantMatrix


class Weights:
    """Tensors are views; whoever read them owns the memory. Remembers which were asked for."""

    def __init__(self, tensors: Mapping[str, QuantMatrix], banks: Iterable[ExpertBank] = ()) -> None:
        self.tensors = tensors
        self.banks = {bank.layer: bank for bank in banks}
        self.used: set[str] = set()
        self._released_bytes = 0

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
        row: Floats = self.floats(name, 1, size)[0]
        return row

    def floats(self, name: str, rows: int, columns: int) -> Floats:
        """Return tensor ``name`` as [rows, columns] f32; InvalidFtw if it is missing or shaped otherwise."""
        tensor = self.matrix(name, rows, columns)
        if tensor.format == "f32":
            values: Floats = tensor.planes[0].astype(np.float32, copy=False)
            return values
        dequantized: Floats = dispatch.get("dequantize")(tensor)
        return dequantized

    def bank(self, layer: int, num_experts: int, hidden_size: int, inner_size: int) -> ExpertBank:
        """Return the experts of ``layer``; InvalidFtw if they are missing or shaped otherwise."""
        bank = self.banks.get(layer)
        if bank is None:
            raise InvalidFtw(f"the model has no experts of layer {layer}")
        if bank.num_experts != num_experts:
            raise InvalidFtw(f"layer {layer} must have {num_experts} experts: {bank.num_experts}")
        try:
            found = check_bank(bank, "silu")
        except ValueError as exc:
            raise InvalidFtw(f"experts of layer {layer}: {exc}") from exc
        if found != (hidden_size, inner_size):
            raise InvalidFtw(
                f"down of the experts of layer {layer} must be {[hidden_size, inner_size]}: {list(found)}"
            )
        self.used.add(f"experts of layer {layer}")
        return bank

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def unused(self) -> list[str]:
        """Return the names of tensors that nobody asked for."""
        names = {*self.tensors, *(f"experts of layer {layer}" for layer in self.banks)}
        return sorted(names - self.used)

    def release(self) -> None:
        """Forget the tensors, which a device has copies of; ``num_bytes`` stays."""
        self._released_bytes = self.num_bytes
        self.tensors, self.banks = {}, {}

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors and expert records."""
        if self._released_bytes:
            return self._released_bytes
        experts = sum(bank.records.nbytes for bank in self.banks.values())
        return experts + sum(tensor.num_bytes for tensor in self.tensors.values())
