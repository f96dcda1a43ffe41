"""The FTW quantisation formats as data: which planes a ``[N, K]`` weight has and what its codes mean.

A plane is one contiguous row-major array with N rows. Four-bit codes lie in blocks of 32 values = 16 bytes:
byte j holds value j in its low nibble and value j + 16 in its high nibble, in every four-bit format. (Where K
is an odd multiple of nvfp4's 16, the last 8 bytes of a row hold values j and j + 8.)

    format   planes (dtype, items in a row of K values)                                 value of code c
    f32      codes f32 K                                                                c
    f16      codes f16 K                                                                c
    bf16     codes u16 K                                                                bfloat16 bits c
    q8_0     codes i8 K · scales f16 K/32                                               c·d
    q4_0     codes u8 K/2 · scales f16 K/32                                             (c - 8)·d
    q4_1     codes u8 K/2 · scales f16 K/32 · mins f16 K/32                             c·d + m
    q5_0     codes u8 K/2 · high u8 K/8 · scales f16 K/32                               (c - 16)·d
    q5_1     codes u8 K/2 · high u8 K/8 · scales f16 K/32 · mins f16 K/32               c·d + m
    q4_k     codes u8 K/2 · scales u8 K/32 · mins u8 K/32 · d f16 K/256 · dmin f16 K/256  c·(d·s) - dmin·m
    q5_k     q4_k's with high u8 K/8 after codes                                        c·(d·s) - dmin·m
    q6_k     codes u8 K/2 · high u8 K/4 · scales i8 K/16 · d f16 K/256                  (c - 32)·(d·s)
    mxfp4    codes u8 K/2 · scales u8 K/32                                              e2m1(c)·2^(s - 127)
    nvfp4    codes u8 K/2 · scales u8 K/16 · global f32 1 (one for the matrix)          e2m1(c)·e4m3(s)·g
    fp8_b128 codes u8 K · scales f32 [N/128, K/128] (rounded up)                        e4m3(c)·s

high: q5 formats keep bit 4 of value i of a block in bit i of a little-endian u32; q6_k keeps bits 4-5 of the
values j, j+8, j+16, j+24 of a 32-block in bits 0-1, 2-3, 4-5, 6-7 of its byte j.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ftd.errors import InvalidFtw

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Plane(NamedTuple):
    """One array of a format: a row of K values takes ``K * items // values`` items of ``dtype``."""

    name: str
    dtype: str
    items: int
    values: int

    @property
    def item_bytes(self) -> int:
        """Bytes of one item."""
        return int(self.dtype[-1])


class QuantFormat(NamedTuple):
    """A format's name, its planes in storage order, and the block that K must be a multiple of."""

    name: str
    block: int
    planes: tuple[Plane, ...]

    def plane_shape(self, plane: Plane, shape: tuple[int, int]) -> tuple[int, int]:
        """Return the shape of ``plane`` for a weight of ``shape`` [N, K]."""
        rows, columns = shape
        if plane.name == "global":
            return (1, 1)
        if self.name == "fp8_b128" and plane.name == "scales":
            return (-(-rows // 128), -(-columns // 128))
        return (rows, columns * plane.items // plane.values)

    def num_bytes(self, shape: tuple[int, int]) -> int:
        """Return the bytes of all planes of a weight of ``shape`` [N, K], without padding."""
        total = 0
        for plane in self.planes:
            rows, items = self.plane_shape(plane, shape)
            total += rows * items * plane.item_bytes
        return total


def _format(name: str, block: int, *planes: tuple[str, str, int, int]) -> QuantFormat:
    return QuantFormat(name, block, tuple(Plane(*plane) for plane in planes))


_CODES4 = ("codes", "u1", 1, 2)
_HIGH1 = ("high", "u1", 1, 8)
_SCALES16 = ("scales", "<f2", 1, 32)
_MINS16 = ("mins", "<f2", 1, 32)
_SUPER = (("scales", "u1", 1, 32), ("mins", "u1", 1, 32), ("d", "<f2", 1, 256), ("dmin", "<f2", 1, 256))

FORMATS: dict[str, QuantFormat] = {
    entry.name: entry
    for entry in (
        _format("f32", 1, ("codes", "<f4", 1, 1)),
        _format("f16", 1, ("codes", "<f2", 1, 1)),
        _format("bf16", 1, ("codes", "<u2", 1, 1)),
        _format("q8_0", 32, ("codes", "i1", 1, 1), _SCALES16),
        _format("q4_0", 32, _CODES4, _SCALES16),
        _format("q4_1", 32, _CODES4, _SCALES16, _MINS16),
        _format("q5_0", 32, _CODES4, _HIGH1, _SCALES16),
        _format("q5_1", 32, _CODES4, _HIGH1, _SCALES16, _MINS16),
        _format("q4_k", 256, _CODES4, *_SUPER),
        _format("q5_k", 256, _CODES4, _HIGH1, *_SUPER),
        _format("q6_k", 256, _CODES4, ("high", "u1", 1, 4), ("scales", "i1", 1, 16), ("d", "<f2", 1, 256)),
        _format("mxfp4", 32, _CODES4, ("scales", "u1", 1, 32)),
        _format("nvfp4", 16, _CODES4, ("scales", "u1", 1, 16), ("global", "<f4", 1, 1)),
        _format("fp8_b128", 1, ("codes", "u1", 1, 1), ("scales", "<f4", 1, 128)),
    )
}


@dataclass(frozen=True, slots=True)
class QuantMatrix:
    """A ``[N, K]`` weight as planes; the planes are views, whoever made them owns the memory."""

    format: str
    shape: tuple[int, int]
    planes: tuple[NDArray[np.generic], ...]

    def __post_init__(self) -> None:
        spec = FORMATS.get(self.format)
        if spec is None:
            raise InvalidFtw(
                f"unknown quantisation format: {self.format!r}", f"use one of {' '.join(FORMATS)}"
            )
        if min(self.shape) <= 0 or self.shape[1] % spec.block:
            raise InvalidFtw(f"{self.format} needs K > 0 in blocks of {spec.block}: {list(self.shape)}")
        if len(self.planes) != len(spec.planes):
            raise InvalidFtw(f"{self.format} has {len(spec.planes)} planes, got {len(self.planes)}")
        for plane, array in zip(spec.planes, self.planes, strict=True):
            wanted = spec.plane_shape(plane, self.shape)
            if array.shape != wanted or array.dtype != plane.dtype or not array.flags.c_contiguous:
                raise InvalidFtw(
                    f"{plane.name} of {self.format} {list(self.shape)} must be contiguous {plane.dtype} "
                    f"{list(wanted)}, got {array.dtype} {list(array.shape)}"
                )

    @property
    def num_bytes(self) -> int:
        """Bytes of all planes: what one matrix-vector product reads."""
        return FORMATS[self.format].num_bytes(self.shape)


class BankMatrix(NamedTuple):
    """One weight of all experts of a layer: ``[N, K]`` in every record, its planes at the same offsets.

    records  [E, S] u8    record e holds every weight of expert e; whoever made it owns the memory
    offsets  bytes        of each plane of the format, from the start of a record
    """

    records: NDArray[np.uint8]
    format: str
    shape: tuple[int, int]
    offsets: tuple[int, ...]

    def expert(self, index: int) -> QuantMatrix:
        """Return the weight of expert ``index`` as views into its record; InvalidFtw if it does not fit."""
        spec = FORMATS.get(self.format)
        if spec is None or len(spec.planes) != len(self.offsets):
            raise InvalidFtw(f"{self.format!r} has no {len(self.offsets)} planes")
        record = self.records[index]
        planes = []
        for plane, offset in zip(spec.planes, self.offsets, strict=True):
            rows, items = spec.plane_shape(plane, self.shape)
            end = offset + rows * items * plane.item_bytes
            if not 0 <= offset <= end <= record.size:
                raise InvalidFtw(f"{plane.name} ends behind its record: {end} > {record.size}")
            planes.append(record[offset:end].view(plane.dtype).reshape(rows, items))
        return QuantMatrix(self.format, self.shape, tuple(planes))


class OnlyMatrix(NamedTuple):
    """One weight of a bank of one expert, wherever it lies."""

    matrix: QuantMatrix

    @property
    def format(self) -> str:
        """The weight's format."""
        return self.matrix.format

    @property
    def shape(self) -> tuple[int, int]:
        """The weight's [N, K]."""
        return self.matrix.shape

    def expert(self, index: int) -> QuantMatrix:
        """Return the weight; the only index is 0."""
        if index != 0:
            raise IndexError(f"a bank of one expert has no expert {index}")
        return self.matrix


class ExpertBank(NamedTuple):
    """The weights of all experts of one layer, records of S bytes that all have the same layout.

    matrices, by role (D hidden size, F inner size of an expert):

        gate_up [2F, D]  rows 0..F-1 are gate's, the others up's;   or   gate [F, D] and up [F, D]
        down    [D, F]
        gate_up_bias [1, 2F] or gate_bias [1, F] and up_bias [1, F], and down_bias [1, D]: f32, if any
    """

    layer: int
    records: NDArray[np.uint8]
    matrices: Mapping[str, BankMatrix | OnlyMatrix]

    @classmethod
    def of_one(cls, layer: int, matrices: Mapping[str, QuantMatrix]) -> ExpertBank:
        """Return a bank of one expert whose weights, by role, need not lie in a record (a shared expert)."""
        import numpy as np  # here: a daemon knows formats, and starts without NumPy

        records = np.zeros((1, 0), np.uint8)
        return cls(layer, records, {role: OnlyMatrix(matrix) for role, matrix in matrices.items()})

    @property
    def num_experts(self) -> int:
        """Experts of the layer."""
        return int(self.records.shape[0])
