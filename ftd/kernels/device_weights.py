"""The weights of one model on a device: each is uploaded once, however often programs are recorded over them.

Small ones share one allocation that is as large as all of them, so that nothing is lost to rounding. Bytes
get there through an ``Upload``, which may bring them later: they are there when ``finish`` returns.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from ftd.errors import OutOfMemory
from ftd.kernels.device_matrix import DeviceBank, DeviceMatrix
from ftd.kernels.quant import ExpertBank, OnlyMatrix, QuantMatrix

T = TypeVar("T")
# Vectors of 16 bytes and whole cache lines, as the allocator of torch gives them
_ALIGNMENT = 256


class Upload(Protocol):
    """Brings bytes of the host to a device."""

    # Whether host memory keeps its addresses until the model is unloaded, so that they name weights
    is_lasting: bool

    def put(self, source: NDArray[np.uint8], target: torch.Tensor) -> None:
        """Make ``target`` [N] u8 equal ``source`` [N], at the latest in ``finish``."""
        ...

    def finish(self) -> None:
        """Return when everything is there."""
        ...


class CopyNow:
    """Copies at once from memory that may go away."""

    is_lasting = False

    def put(self, source: NDArray[np.uint8], target: torch.Tensor) -> None:
        """Copy."""
        target.copy_(torch.from_numpy(source))

    def finish(self) -> None:
        """Do nothing: all is there."""


class DeviceWeights:
    """Owns the weights on ``device``; matrices and banks are found by where they lie in host memory.

    arena_bytes: what all dense weights take together; those that do not fit there are allocated alone.
    """

    def __init__(self, device: str, upload: Upload | None = None, arena_bytes: int = 0) -> None:
        self.device = device
        self._upload: Upload = upload or CopyNow()
        self._arena = allocate(lambda: torch.empty(arena_bytes, dtype=torch.uint8, device=device))
        self._arena_used = 0
        self._matrices: dict[tuple[int, ...], tuple[list[QuantMatrix], DeviceMatrix]] = {}
        self._banks: dict[tuple[int, int], tuple[ExpertBank, DeviceBank]] = {}
        self.num_bytes = 0

    def matrix(self, weights: list[QuantMatrix]) -> DeviceMatrix:
        """Return ``weights``, stacked, on the device."""
        key = tuple(weight.planes[0].__array_interface__["data"][0] for weight in weights)
        if key not in self._matrices:
            placed = allocate(lambda: DeviceMatrix.upload(weights, self.device, self._place))
            self._matrices[key] = weights, placed
            self.num_bytes += sum(each.num_bytes for each in weights)
        return self._matrices[key][1]

    def bank(self, bank: ExpertBank) -> DeviceBank:
        """Return all experts of ``bank`` on the device."""
        first = next(iter(bank.matrices.values()))
        array = first.matrix.planes[0] if isinstance(first, OnlyMatrix) else bank.records
        key = array.__array_interface__["data"][0], bank.layer
        if key not in self._banks:
            placed = allocate(lambda: DeviceBank.upload(bank, self.device, self._place))
            self._banks[key] = bank, placed
            self.num_bytes += bank.records.nbytes or sum(each.num_bytes for each in placed.matrices.values())
        return self._banks[key][1]

    def finish(self) -> None:
        """Return when all bytes are there; forget host memory whose addresses name nothing."""
        self._upload.finish()
        if not self._upload.is_lasting:
            self._matrices.clear()
            self._banks.clear()

    def _place(self, parts: Sequence[NDArray[np.uint8]]) -> torch.Tensor:
        """Return memory for ``parts`` [rows, bytes], one below the other, and have them brought there."""
        rows, width = sum(len(part) for part in parts), parts[0].shape[1]
        target = self._take(rows * width)
        start = 0
        for part in parts:
            flat = np.ascontiguousarray(part).reshape(-1)
            self._upload.put(flat, target[start : start + flat.nbytes])
            start += flat.nbytes
        return target.view(rows, width)

    def _take(self, num_bytes: int) -> torch.Tensor:
        end = self._arena_used + num_bytes
        if end > len(self._arena):
            return torch.empty(num_bytes, dtype=torch.uint8, device=self.device)
        taken = self._arena[self._arena_used : end]
        self._arena_used = -(-end // _ALIGNMENT) * _ALIGNMENT
        return taken


def allocate(make: Callable[[], T]) -> T:
    """Return what ``make`` allocates. Raises OutOfMemory if the device refuses."""
    try:
        return make()
    except torch.OutOfMemoryError as exc:
        raise OutOfMemory(
            f"the device refused memory: {str(exc).split('. ', maxsplit=1)[0]}",
            "lower num_ctx or FTD_NUM_PARALLEL, use a smaller model, or set FTD_DEVICE=cpu",
        ) from exc
