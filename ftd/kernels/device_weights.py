"""The weights of one model on a device: each is uploaded once, however often programs are recorded over them.

Dense ones share one allocation that is as large as all of them, and so do experts: nothing is lost to
rounding. Bytes get there through an ``Upload``, which may bring them later: they are there when ``finish``
returns.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from ftd.errors import OutOfMemory
from ftd.kernels.device_matrix import DeviceBank, DeviceMatrix, Place
from ftd.kernels.quant import ExpertBank, OnlyMatrix, QuantMatrix

T = TypeVar("T")
# Vectors of 16 bytes and whole cache lines, as the allocator of torch gives them
_ALIGNMENT = 256


class Upload(Protocol):
    """Brings bytes of host memory, whose addresses stay what they are, to a device."""

    def put(self, source: NDArray[np.uint8], target: torch.Tensor) -> bool:
        """Promise that ``target`` [N] u8 equals ``source`` [N] after ``finish``; False: it cannot."""
        ...

    def finish(self) -> None:
        """Return when everything is there."""
        ...


class DeviceWeights:
    """Owns the weights on ``device``; matrices and banks are found by where they lie in host memory.

    upload: what brings them; without one they are copied at once, and forgotten when recording has ended.

    dense_bytes, expert_bytes: what these take together; what does not fit is allocated alone.
    """

    def __init__(
        self, device: str, upload: Upload | None = None, dense_bytes: int = 0, expert_bytes: int = 0
    ) -> None:
        self.device = device
        self._upload = upload
        self._dense, self._experts = _Arena(dense_bytes, device), _Arena(expert_bytes, device)
        self._matrices: dict[tuple[int, ...], tuple[list[QuantMatrix], DeviceMatrix]] = {}
        self._banks: dict[tuple[int, int], tuple[ExpertBank, DeviceBank]] = {}
        self.num_bytes = 0

    def matrix(self, weights: list[QuantMatrix]) -> DeviceMatrix:
        """Return ``weights``, stacked, on the device."""
        key = tuple(weight.planes[0].__array_interface__["data"][0] for weight in weights)
        if key not in self._matrices:
            placed = allocate(lambda: DeviceMatrix.upload(weights, self.device, self._in(self._dense)))
            self._matrices[key] = weights, placed
            self.num_bytes += sum(each.num_bytes for each in weights)
        return self._matrices[key][1]

    def bank(self, bank: ExpertBank) -> DeviceBank:
        """Return all experts of ``bank`` on the device."""
        first = next(iter(bank.matrices.values()))
        array = first.matrix.planes[0] if isinstance(first, OnlyMatrix) else bank.records
        key = array.__array_interface__["data"][0], bank.layer
        if key not in self._banks:
            arena = self._dense if isinstance(first, OnlyMatrix) else self._experts
            placed = allocate(lambda: DeviceBank.upload(bank, self.device, self._in(arena)))
            self._banks[key] = bank, placed
            self.num_bytes += bank.records.nbytes or sum(each.num_bytes for each in placed.matrices.values())
        return self._banks[key][1]

    @property
    def has_experts(self) -> bool:
        """Whether there are banks of several experts."""
        return any(bank.num_experts > 1 for _, bank in self._banks.values())

    def finish(self) -> None:
        """Return when all bytes are there; forget host memory whose addresses name nothing."""
        if self._upload is not None:
            self._upload.finish()
            return
        self._matrices.clear()
        self._banks.clear()

    def _in(self, arena: "_Arena") -> Place:
        """Return what takes memory of ``arena`` for arrays, and has them brought there."""

        def place(parts: Sequence[NDArray[np.uint8]]) -> torch.Tensor:
            rows, width = sum(len(part) for part in parts), parts[0].shape[1]
            target, start = arena.take(rows * width), 0
            for part in parts:
                flat = np.ascontiguousarray(part).reshape(-1)
                place_of = target[start : start + flat.nbytes]
                if self._upload is None or not self._upload.put(flat, place_of):
                    with warnings.catch_warnings():
                        # Of memory that may not be written; nobody does
                        warnings.simplefilter("ignore", UserWarning)
                        place_of.copy_(torch.from_numpy(flat))
                start += flat.nbytes
            return target.view(rows, width)

        return place


class _Arena:
    """One allocation that is given away in parts."""

    def __init__(self, num_bytes: int, device: str) -> None:
        self._device = device
        self._memory = allocate(lambda: torch.empty(num_bytes, dtype=torch.uint8, device=device))
        self._used = 0

    def take(self, num_bytes: int) -> torch.Tensor:
        """Return [num_bytes] u8, of its own where there is no room."""
        end = self._used + num_bytes
        if end > len(self._memory):
            return torch.empty(num_bytes, dtype=torch.uint8, device=self._device)
        taken = self._memory[self._used : end]
        self._used = -(-end // _ALIGNMENT) * _ALIGNMENT
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
