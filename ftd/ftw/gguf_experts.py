"""The experts of a GGUF model on their way into records, one at a time, codes and scales unchanged.

GGUF stacks the experts of a layer, ``[E, N, K]`` a tensor, so the share of one expert is one run of bytes.
Memory holds the raw bytes of one tensor of one expert and the planes of three records.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ftd.errors import InvalidGguf
from ftd.ftw import gguf_blocks
from ftd.ftw.gguf import TYPES, GgufFile, TensorInfo
from ftd.ftw.gguf_parts import ExpertPart, Family
from ftd.ftw.gguf_shards import GgufModel
from ftd.ftw.prefetch import prefetched
from ftd.ftw.quantize import quantize, target
from ftd.ftw.writer import FtwWriter
from ftd.kernels.quant import FORMATS, QuantMatrix

_BLOCK_BYTES = {name: block_bytes for name, _, block_bytes in TYPES.values()}


@dataclass(frozen=True, slots=True)
class Bank:
    """One tensor of all experts of a layer, and what one expert's share of it becomes."""

    file: GgufFile
    info: TensorInfo
    role: str
    format: str
    shape: tuple[int, int]
    num_experts: int

    @property
    def expert_bytes(self) -> int:
        """Bytes of one expert's share in the file."""
        return self.info.num_bytes // self.num_experts


def plan(
    family: Family, model: GgufModel, layers: Sequence[int], size: dict[str, int], quantization: str | None
) -> dict[int, list[Bank]]:
    """Return the banks of each layer; raise InvalidGguf for one that is missing or of another shape."""
    return {
        layer: [_bank(model, f"blk.{layer}.{part.gguf}", part, size, quantization) for part in family.experts]
        for layer in layers
    }


def _bank(
    model: GgufModel, name: str, part: ExpertPart, size: dict[str, int], quantization: str | None
) -> Bank:
    num_experts = size["E"]
    if name not in model.source:
        raise InvalidGguf(f"tensor {name} is missing")
    file, info = model.source[name]
    shape = tuple(size[letter] for letter in part.shape)
    wanted = (*reversed(shape), num_experts)
    if info.dims != wanted:
        raise InvalidGguf(f"tensor {name} has dims {list(info.dims)} instead of {list(wanted)}")
    format = gguf_blocks.format_of(info.type, name)
    if len(shape) == 2:
        format = target(part.role, format, shape[1], quantization)
        return Bank(file, info, part.role, format, (shape[0], shape[1]), num_experts)
    if FORMATS[format].block != 1:
        raise InvalidGguf(f"tensor {name} holds vectors and must not be quantised: {info.type}")
    return Bank(file, info, part.role, "f32", (1, shape[0]), num_experts)


def write(writer: FtwWriter, banks: Mapping[int, Sequence[Bank]], done: Callable[[int], None]) -> None:
    """Write every expert record; ``done(num_bytes)`` hears of the source bytes of each."""
    if not banks:
        return
    layers = list(banks.values())
    num_experts = layers[0][0].num_experts
    shapes = [[(bank.role, bank.format, bank.shape) for bank in layer] for layer in layers]
    writer.begin_experts(num_experts, list(banks), shapes)
    reads = (
        _nothing if writer.has_expert(row * num_experts + expert) else partial(_record, layer, expert)
        for row, layer in enumerate(layers)
        for expert in range(num_experts)
    )
    for number, record in enumerate(prefetched(reads)):
        writer.add_expert(record)
        done(sum(bank.expert_bytes for bank in layers[number // num_experts]))


def _nothing() -> None:
    """Read no record, for one that an earlier conversion wrote."""


def _record(layer: Sequence[Bank], expert: int) -> dict[str, QuantMatrix]:
    return {bank.role: _share(bank, expert) for bank in layer}


def _share(bank: Bank, expert: int) -> QuantMatrix:
    """Read one expert's share of a bank."""
    raw = np.empty(bank.expert_bytes, np.uint8)
    bank.file.read_into(raw, bank.info, expert * bank.expert_bytes)
    if bank.format == "f32":
        return QuantMatrix("f32", bank.shape, (as_f32(raw, bank.info.type).reshape(bank.shape),))
    if bank.format != gguf_blocks.FORMAT_BY_TYPE[bank.info.type]:
        return quantize(as_f32(raw, bank.info.type).reshape(bank.shape), bank.format)
    blocks = raw.reshape(-1, _BLOCK_BYTES[bank.info.type])
    spec, planes = FORMATS[bank.format], []
    for plane in spec.planes:
        data = gguf_blocks.plane(bank.info.type, plane.name, blocks)
        planes.append(data.reshape(-1).view(plane.dtype).reshape(spec.plane_shape(plane, bank.shape)))
    return QuantMatrix(bank.format, bank.shape, tuple(planes))


def as_f32(raw: NDArray[np.uint8], ggml_type: str) -> NDArray[np.float32]:
    """Return floats of any type as f32, which holds every f16 and bf16 exactly."""
    if ggml_type == "BF16":
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    return raw.view("<f4" if ggml_type == "F32" else "<f2").astype(np.float32)
