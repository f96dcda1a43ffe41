"""The experts of a GGUF model on their way into records, one at a time, codes and scales unchanged.

GGUF stacks the experts of a layer, ``[E, N, K]`` a tensor, so the share of one expert is one run of bytes; in
older files each expert has a tensor of its own (``ffn_gate.3.weight``).
Memory holds the raw bytes of one tensor of one expert and the planes of three records.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ftd.errors import InvalidGguf
from ftd.ftw import gguf_blocks
from ftd.ftw.gguf import TYPES, GgufFile, TensorInfo
from ftd.ftw.gguf_parts import ExpertPart, Family
from ftd.ftw.gguf_shards import GgufModel
from ftd.ftw.quantize import quantize
from ftd.ftw.recipes import Recipe, target
from ftd.kernels.quant import FORMATS, QuantMatrix

_BLOCK_BYTES = {name: block_bytes for name, _, block_bytes in TYPES.values()}


@dataclass(frozen=True, slots=True)
class Bank:
    """One weight of all experts of a layer, and what one expert's share of it becomes.

    sources: one tensor of all experts, or one an expert (files of before 2024). Of a tensor whose experts
    hold several weights this one is number ``part`` of ``num_parts``: one after the other, or if
    ``alternating`` is not 0 so many rows of each in turn.
    """

    sources: tuple[tuple[GgufFile, TensorInfo], ...]
    role: str
    format: str
    shape: tuple[int, int]
    num_experts: int
    part: int = 0
    num_parts: int = 1
    alternating: int = 0

    @property
    def type(self) -> str:
        """The block type."""
        return self.sources[0][1].type

    @property
    def names(self) -> list[str]:
        """The names of the tensors."""
        return [info.name for _, info in self.sources]

    @property
    def num_bytes(self) -> int:
        """Bytes of all shares in the files."""
        return sum(info.num_bytes for _, info in self.sources) // self.num_parts

    @property
    def expert_bytes(self) -> int:
        """Bytes of one expert's share in the file."""
        return self.num_bytes // self.num_experts

    def read(self, expert: int) -> NDArray[np.uint8]:
        """Return the bytes of one expert's share."""
        if self.alternating:
            file, info = self.sources[0]
            both = np.empty(self.num_parts * self.expert_bytes, np.uint8)
            file.read_into(both, info, expert * len(both))
            rows = both.reshape(self.alternating, self.num_parts, -1)[:, self.part]
            return np.ascontiguousarray(rows).reshape(-1)
        raw = np.empty(self.expert_bytes, np.uint8)
        if len(self.sources) > 1:
            file, info = self.sources[expert]
            file.read_into(raw, info, 0)
        else:
            file, info = self.sources[0]
            file.read_into(raw, info, (expert * self.num_parts + self.part) * self.expert_bytes)
        return raw


def plan(
    family: Family, model: GgufModel, recipes: Mapping[int, Recipe | None], size: dict[str, int]
) -> dict[int, list[Bank]]:
    """Return the banks of each layer of ``recipes``; InvalidGguf for one missing or of another shape."""
    return {
        layer: [
            _bank(model, f"blk.{layer}.{part.gguf}", part, size, recipe, family.alternating)
            for part in family.experts
        ]
        for layer, recipe in recipes.items()
    }


def _bank(
    model: GgufModel,
    name: str,
    part: ExpertPart,
    size: dict[str, int],
    recipe: Recipe | None,
    alternating: bool,
) -> Bank:
    num_experts = size["E"]
    shape = tuple(size[letter] for letter in part.shape)
    names, number, num_parts = _stored(model, name, part, num_experts)
    sources: list[tuple[GgufFile, TensorInfo]] = []
    rows = (*reversed(shape[1:]), num_parts * shape[0])
    in_turn = shape[0] if alternating and num_parts > 1 else 0
    wanted = rows if len(names) > 1 else (*rows, num_experts)
    for stored in names:
        if stored not in model.source:
            raise InvalidGguf(f"tensor {stored} is missing")
        file, info = model.source[stored]
        if info.dims != wanted:
            raise InvalidGguf(f"tensor {stored} has dims {list(info.dims)} instead of {list(wanted)}")
        if sources and info.type != sources[0][1].type:
            raise InvalidGguf(
                f"experts differ in type: {stored} is {info.type}, {names[0]} {sources[0][1].type}"
            )
        sources.append((file, info))
    info = sources[0][1]
    format = gguf_blocks.format_of(info.type, info.name)
    if len(shape) == 2:
        format = target(part.role, format, shape[1], recipe)
        matrix = (shape[0], shape[1])
        return Bank(tuple(sources), part.role, format, matrix, num_experts, number, num_parts, in_turn)
    if FORMATS[format].block != 1:
        raise InvalidGguf(f"tensor {info.name} holds vectors and must not be quantised: {info.type}")
    return Bank(tuple(sources), part.role, "f32", (1, shape[0]), num_experts, number, num_parts, in_turn)


def _stored(
    model: GgufModel, name: str, part: ExpertPart, num_experts: int
) -> tuple[Sequence[str], int, int]:
    """Return the tensors that hold a weight, its number among the weights in them, and their count."""
    if name in model.source:
        return [name], 0, 1
    each = [name.replace("_exps.", f".{expert}.") for expert in range(num_experts)]
    if each[0] in model.source:
        return each, 0, 1
    role = part.role.removesuffix("_bias")
    both = name.replace(f"ffn_{role}_exps", "ffn_gate_up_exps")
    if role in ("gate", "up") and both in model.source:
        return [both], 0 if role == "gate" else 1, 2
    return [name], 0, 1


def read(bank: Bank, expert: int) -> QuantMatrix:
    """Read one expert's share of a bank."""
    raw = bank.read(expert)
    if bank.format == "f32":
        return QuantMatrix("f32", bank.shape, (as_f32(raw, bank.type).reshape(bank.shape),))
    if bank.format != gguf_blocks.FORMAT_BY_TYPE[bank.type]:
        return quantize(as_f32(raw, bank.type).reshape(bank.shape), bank.format)
    blocks = raw.reshape(-1, _BLOCK_BYTES[bank.type])
    spec, planes = FORMATS[bank.format], []
    for plane in spec.planes:
        data = gguf_blocks.plane(bank.type, plane.name, blocks)
        planes.append(data.reshape(-1).view(plane.dtype).reshape(spec.plane_shape(plane, bank.shape)))
    return QuantMatrix(bank.format, bank.shape, tuple(planes))


def source_bytes(layer: Sequence[Bank]) -> int:
    """Return the bytes of a layer's experts in the files."""
    return sum(bank.num_bytes for bank in layer)


def as_f32(raw: NDArray[np.uint8], ggml_type: str) -> NDArray[np.float32]:
    """Return floats of any type as f32, which holds every f16 and bf16 exactly."""
    if ggml_type == "BF16":
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    return raw.view("<f4" if ggml_type == "F32" else "<f2").astype(np.float32)
