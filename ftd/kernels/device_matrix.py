"""Quantised weights on a GPU: the planes of ``quant`` as torch tensors.

A device matrix lies in one or more *slots*, places of the same size and layout; a dense weight has one, an
expert's weight lies in the slot that ``DeviceBank.slot_of`` names. Planes keep the bytes of the file.

    planes[i]  [R, rows, items]    rows and items as in ``quant``; contiguous in a slot, any stride between
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ftd.kernels.quant import FORMATS, ExpertBank, OnlyMatrix, QuantMatrix

# Planes are copied byte by byte; these are the types that kernels read them as.
DTYPES: dict[str, torch.dtype] = {
    "<f4": torch.float32,
    "<f2": torch.float16,
    "<u2": torch.bfloat16,
    "i1": torch.int8,
    "u1": torch.uint8,
}
# Returns device memory [rows, bytes] that has, or will have, the bytes of arrays one below the other
Place = Callable[[Sequence[NDArray[np.uint8]]], torch.Tensor]
# Triton reads vectors of 16 bytes where it knows that addresses are multiples of 16.
ALIGNMENT = 16


@dataclass(frozen=True, slots=True, eq=False)
class DeviceMatrix:
    """A ``[N, K]`` weight in each of R slots; the planes are views, whoever made them owns the memory."""

    format: str
    shape: tuple[int, int]
    planes: tuple[torch.Tensor, ...]

    @classmethod
    def upload(
        cls, matrices: Sequence[QuantMatrix], device: str, place: Place | None = None
    ) -> "DeviceMatrix":
        """Copy ``matrices`` of one format and K to ``device``, stacked along N, into one slot.

        place: what allocates and copies instead.
        """
        first = matrices[0]
        columns = first.shape[1]
        if any(each.format != first.format or each.shape[1] != columns for each in matrices):
            raise ValueError("stacked matrices must agree in format and columns")
        if first.format in ("nvfp4", "fp8_b128") and len(matrices) > 1:
            raise ValueError(f"{first.format} matrices share scales between rows and cannot be stacked")
        planes = []
        for i, plane in enumerate(FORMATS[first.format].planes):
            parts = [each.planes[i].view(np.uint8) for each in matrices]
            tensor = place(parts) if place else torch.from_numpy(np.concatenate(parts)).to(device)
            planes.append(tensor.view(DTYPES[plane.dtype]).unsqueeze(0))
        return cls(first.format, (sum(each.shape[0] for each in matrices), columns), tuple(planes))

    @classmethod
    def in_slots(
        cls, slots: torch.Tensor, format_name: str, shape: tuple[int, int], offsets: Sequence[int]
    ) -> "DeviceMatrix":
        """Return the weight whose planes lie at ``offsets`` (bytes) of each of ``slots`` [R, S] u8."""
        planes = []
        for plane, offset in zip(FORMATS[format_name].planes, offsets, strict=True):
            rows, items = FORMATS[format_name].plane_shape(plane, shape)
            dtype = DTYPES[plane.dtype]
            end = offset + rows * items * dtype.itemsize
            if not 0 <= offset <= end <= slots.shape[1] or offset % ALIGNMENT:
                raise ValueError(
                    f"{plane.name} at {offset} .. {end} does not fit slots of {slots.shape[1]} bytes"
                )
            planes.append(slots[:, offset:end].view(dtype).view(-1, rows, items))
        return cls(format_name, shape, tuple(planes))

    @property
    def num_slots(self) -> int:
        """R: places that hold this weight."""
        return int(self.planes[0].shape[0])

    @property
    def num_bytes(self) -> int:
        """Bytes of all planes of one slot."""
        return FORMATS[self.format].num_bytes(self.shape)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceBank:
    """The weights of one layer's experts, in slots.

    matrices  by role, as in ``ExpertBank``; all of one bank share their slots
    slot_of   [E] i32 on the device: where each expert lies; kernels never see a negative one
    """

    layer: int
    matrices: Mapping[str, DeviceMatrix]
    slot_of: torch.Tensor

    @classmethod
    def upload(cls, bank: ExpertBank, device: str, place: Place | None = None) -> "DeviceBank":
        """Copy all records of ``bank``; expert e lies in slot e. place: as for a matrix."""
        matrices = {}
        slots = place([bank.records]) if place else torch.tensor(bank.records, device=device)
        for role, matrix in bank.matrices.items():
            if isinstance(matrix, OnlyMatrix):
                matrices[role] = DeviceMatrix.upload([matrix.matrix], device, place)
            else:
                matrices[role] = DeviceMatrix.in_slots(slots, matrix.format, matrix.shape, matrix.offsets)
        return cls(bank.layer, matrices, torch.arange(bank.num_experts, dtype=torch.int32, device=device))

    @property
    def num_experts(self) -> int:
        """E: experts of the layer."""
        return int(self.slot_of.shape[0])
