"""GGUF to FTW: codes and scales are kept exactly, names and row order become Hugging Face's.

Tensors stream one after the other in slabs of rows, experts one by one, so memory stays bounded by
``SLAB_BYTES`` and one expert whatever the model's size. What can be refused is refused before the first byte
is written; blobs appear when all succeeded.
"""

import logging
import math
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ftd.errors import InvalidGguf, Unsupported
from ftd.ftw import expert_records, gemma3, gguf_blocks, gguf_experts, qwen35
from ftd.ftw.format import FtwConfig, Json
from ftd.ftw.fused_rows import Run, rows_of, slabs
from ftd.ftw.gguf import TYPES, GgufFile, TensorInfo
from ftd.ftw.gguf_families import drafting_layers, family_of, hyperparameters
from ftd.ftw.gguf_parts import Family, Part, expert_layers, sizes
from ftd.ftw.gguf_shards import GgufModel
from ftd.ftw.gguf_tokens import special_tokens
from ftd.ftw.imported import ImportedModel, Progress, imported, no_progress, write_tokenizer
from ftd.ftw.quantize import plane_of, quantize
from ftd.ftw.recipes import check_name, recipe, target
from ftd.ftw.sink import BlobSink
from ftd.ftw.tokenizer_json import tokenizer_json
from ftd.ftw.writer import FtwWriter
from ftd.kernels.quant import FORMATS
from ftd.log import fields

log = logging.getLogger(__name__)

SLAB_BYTES = 4 << 20  # small enough that the allocator reuses memory instead of mapping it anew
SHOWN_ITEMS = 5  # longer metadata arrays are shown as empty, as Ollama does
_BLOCK_BYTES = {name: (block, block_bytes) for name, block, block_bytes in TYPES.values()}
_LAYER_TENSOR = re.compile(r"blk\.(\d{1,4})\.(.+)", re.ASCII)

_FILE_TYPES = {
    **{0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S"},
    **{
        12: "Q3_K_M",
        13: "Q3_K_L",
        14: "Q4_K_S",
        15: "Q4_K_M",
        16: "Q5_K_S",
        17: "Q5_K_M",
        18: "Q6_K",
        32: "BF16",
        4: "MXFP4",  # Ollama's; 38 is ggml's
        38: "MXFP4",
    },
}


@dataclass(frozen=True, slots=True)
class _Planned:
    """One tensor to copy; ``head_dim``: rows must be sorted back; ``runs``: not all are taken."""

    file: GgufFile
    info: TensorInfo
    name: str
    format: str
    shape: tuple[int, int]
    head_dim: int
    vector: bool
    runs: tuple[Run, ...] = ()


def import_gguf(
    paths: Sequence[Path],
    sink: BlobSink,
    progress: Progress = no_progress,
    quantization: str | None = None,
    key: str | None = None,
) -> ImportedModel:
    """Convert a GGUF model to FTW blobs in ``sink``.

    paths: one file, any one shard with the others beside it, or all shards in any order.
    quantization: None keeps what the file has; else what ``ftd.ftw.recipes`` makes of a model of floats.
    progress(done_bytes, total_bytes) counts bytes of weights. key: as in FtwWriter.
    Raises InvalidGguf or Unsupported.
    """
    started = time.monotonic()
    with GgufModel.open(paths) as model:
        family, settings = family_of(model)
        hyper = hyperparameters(family, settings, model)
        _check_floats(model, quantization)
        plan, experts = _plan(family, model, hyper, quantization)
        tokenizer = tokenizer_json(settings.metadata, vocab_size=int(str(hyper["vocab_size"]))).encode()
        draft = FtwConfig(
            architecture=family.model_type,
            hyperparameters=hyper,
            quantization=quantization.upper() if quantization else _quantization(model),
            parameter_count=sum(tensor.num_values for tensor in model.tensors),
            tokens=special_tokens(settings.metadata, int(str(hyper["vocab_size"]))),
            tensors=[],
            blobs=[],
            metadata=shown_metadata(model),
            provenance={"source": "gguf", "files": [file.path.name for file in model.files]},
        )
        template = model.metadata.get("tokenizer.chat_template")
        with FtwWriter(sink, key=key) as writer:
            total = _write_weights(writer, plan, experts, progress)
            tokenizer_blob = write_tokenizer(sink, tokenizer)
            written = writer.finish(draft)
    seconds = time.monotonic() - started
    log.info(fields("import done", bytes=total, seconds=seconds, mbps=total / max(seconds, 1e-9) / 1e6))
    return imported(written, tokenizer_blob, template if isinstance(template, str) else None)


def _write_weights(
    writer: FtwWriter,
    plan: list[_Planned],
    experts: dict[int, list[gguf_experts.Bank]],
    progress: Progress,
) -> int:
    """Write all weights; return the bytes that they take in the files."""
    total = sum(planned.info.num_bytes for planned in plan)
    total += sum(gguf_experts.source_bytes(banks) for banks in experts.values())
    done, scratch = 0, _Scratch()

    def advance(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        progress(done, total)

    for planned in plan:
        writer.add(planned.name, planned.format, planned.shape, _planes(planned, scratch))
        advance(planned.info.num_bytes)
    if experts:
        expert_records.write(
            writer,
            experts,
            next(iter(experts.values()))[0].num_experts,
            read=gguf_experts.read,
            source_bytes=gguf_experts.source_bytes,
            done=advance,
        )
    return total


def _check_floats(model: GgufModel, quantization: str | None) -> None:
    """Raise Unsupported if there is something to quantise that has been quantised before."""
    if quantization is None:
        return
    check_name(quantization)
    for tensor in model.tensors:
        if tensor.type not in ("F32", "F16", "BF16"):
            raise Unsupported(
                f"a model that is quantised already keeps its quantization: {tensor.name} is {tensor.type}",
                "create from a file of f32, f16 or bf16",
            )


def _plan(
    family: Family, model: GgufModel, hyper: dict[str, Json], quantization: str | None
) -> tuple[list[_Planned], dict[int, list[gguf_experts.Bank]]]:
    """Match the model's tensors with the family's; return them in the order in which a step uses them."""
    size, num_layers = sizes(family, hyper), int(str(hyper["num_hidden_layers"]))
    tied = hyper["tie_word_embeddings"] is True
    plan = []
    for layer, part in family.wanted(hyper):
        if part.older and f"blk.{layer}.{part.older[0]}" in model.source:
            part = replace(part, gguf=part.older[0], fused=part.older[1])  # noqa: PLW2901
        gguf_name = part.gguf if layer is None else f"blk.{layer}.{part.gguf}"
        name = part.name if layer is None else f"model.layers.{layer}.{part.name}"
        if gguf_name in model.source:
            file, info = model.source[gguf_name]
            planned = _planned(file, info, name, part, size)
            made = None if planned.vector else recipe(quantization, layer, num_layers, size["E"], tied)
            format = target(name, planned.format, planned.shape[1], made)
            plan.append(replace(planned, format=format))
        elif part.required:
            raise InvalidGguf(f"tensor {gguf_name} is missing")
    layers = expert_layers(family, hyper)
    recipes = {layer: recipe(quantization, layer, num_layers, size["E"], tied) for layer in layers}
    experts = gguf_experts.plan(family, model, recipes, size)
    known = {planned.info.name for planned in plan} | {"rope_freqs.weight"}
    known |= {name for banks in experts.values() for bank in banks for name in bank.names}
    unknown = [
        name for name in model.source if name not in known and not _has_no_use(name, model, num_layers)
    ]
    if unknown:
        raise InvalidGguf(
            f"{len(unknown)} tensors do not belong to a {family.model_type} model: {' '.join(unknown[:5])}"
        )
    return plan, experts


def _has_no_use(name: str, model: GgufModel, num_layers: int) -> bool:
    """Say whether a tensor reads pictures, or belongs to layers behind the last that only draft tokens."""
    if name.startswith(gemma3.PICTURES) and gemma3.has_pictures(model.metadata):
        return True
    if name.startswith(qwen35.DRAFTING) and model.metadata["general.architecture"] in qwen35.ARCHITECTURES:
        return True
    match = _LAYER_TENSOR.fullmatch(name)
    return match is not None and num_layers <= int(match[1]) < num_layers + drafting_layers(model)


def _planned(file: GgufFile, info: TensorInfo, name: str, part: Part, size: dict[str, int]) -> _Planned:
    shape, head_dim = tuple(size[letter] for letter in part.shape), size["C"]
    fused = rows_of(part.fused, size) if part.fused else None
    dims = (*reversed(shape[1:]), shape[0] if fused is None else fused.stored)
    if info.dims not in (dims, (*dims, 1)):  # a matrix of one row is a vector to some converters
        raise InvalidGguf(f"tensor {info.name} has dims {list(info.dims)} instead of {list(dims)}")
    matrix = (1, shape[0]) if len(shape) == 1 else (math.prod(shape[:-1]), shape[-1])
    format = gguf_blocks.format_of(info.type, info.name)
    if len(shape) == 1:
        if FORMATS[format].block != 1:
            raise InvalidGguf(f"tensor {info.name} is a vector and must not be quantised: {info.type}")
        format = "f32"
    if part.interleaved and head_dim % 2:
        raise InvalidGguf(f"the head size is odd: {head_dim}")
    runs = () if fused is None else fused.runs
    sorted_dim = head_dim if part.interleaved else 0
    return _Planned(file, info, name, format, matrix, sorted_dim, len(shape) == 1, runs)


class _Scratch:
    """One buffer that every slab of an import is read into: fresh memory would cost a page fault a page."""

    def __init__(self) -> None:
        self._buffer: NDArray[np.uint8] = np.empty(SLAB_BYTES, np.uint8)

    def take(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return ``num_bytes`` of the buffer, whose former content is lost."""
        if num_bytes > len(self._buffer):
            self._buffer = np.empty(num_bytes, np.uint8)
        return self._buffer[:num_bytes]


def _planes(planned: _Planned, scratch: _Scratch) -> list[Iterator[NDArray[np.generic]]]:
    if planned.vector:
        return [iter([_vector(planned)])]
    source = _Slabs(planned, scratch)
    return [source.plane(plane.name) for plane in FORMATS[planned.format].planes]


def _vector(planned: _Planned) -> NDArray[np.generic]:
    """Return a 1-D tensor as f32, which holds every f16 and bf16 exactly."""
    raw = planned.file.read(planned.info)
    values: NDArray[np.generic] = gguf_experts.as_f32(raw, planned.info.type)
    if planned.runs:
        values = np.concatenate([values[first : first + count] for first, count in planned.runs])
    return _halves(values.reshape(-1, 1), planned.head_dim) if planned.head_dim else values


def _halves(rows: NDArray[np.generic], head_dim: int) -> NDArray[np.generic]:
    """Sort rows from neighbours (0, C/2, 1, C/2 + 1, …) back to halves (0, 1, 2, …) inside each head."""
    heads = rows.reshape(-1, head_dim // 2, 2, rows.shape[1])
    return np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(rows.shape)


class _Slabs:
    """The rows of one tensor in slabs of whole heads; keeps the last one: small tensors are read once."""

    def __init__(self, planned: _Planned, scratch: _Scratch) -> None:
        self._planned = planned
        self._scratch = scratch
        block, block_bytes = _BLOCK_BYTES[planned.info.type]
        self._block_bytes = block_bytes
        self._row_bytes = planned.shape[1] // block * block_bytes
        unit = planned.head_dim or 1
        self._rows = max(SLAB_BYTES // self._row_bytes // unit, 1) * unit
        self._first = -1
        self._slab: NDArray[np.uint8] = np.empty(0, np.uint8)

    def plane(self, name: str) -> Iterator[NDArray[np.generic]]:
        """Yield one plane, slab by slab."""
        for first, rows in slabs(self._planned.runs or ((0, self._planned.shape[0]),), self._rows):
            if first != self._first:
                raw = self._scratch.take(rows * self._row_bytes)
                self._planned.file.read_into(raw, self._planned.info, first * self._row_bytes)
                self._slab, self._first = raw.reshape(-1, self._block_bytes), first
            out: NDArray[np.generic]
            if self._planned.format == gguf_blocks.FORMAT_BY_TYPE[self._planned.info.type]:
                out = gguf_blocks.plane(self._planned.info.type, name, self._slab)
            else:
                floats = gguf_experts.as_f32(self._slab.reshape(-1), self._planned.info.type)
                out = plane_of(quantize(floats.reshape(rows, -1), self._planned.format), name)
            if self._planned.head_dim:
                yield _halves(out.reshape(rows, -1), self._planned.head_dim)
            else:
                yield out


def _quantization(model: GgufModel) -> str:
    """Return the model's quantisation as people call it; without a file type, the type of most bytes."""
    file_type = model.metadata.get("general.file_type")
    if isinstance(file_type, int) and file_type in _FILE_TYPES:
        return _FILE_TYPES[file_type]
    bytes_by_type: dict[str, int] = {}
    for tensor in model.tensors:
        bytes_by_type[tensor.type] = bytes_by_type.get(tensor.type, 0) + tensor.num_bytes
    most = max(bytes_by_type, key=lambda name: bytes_by_type[name], default="unknown")
    return gguf_blocks.FORMAT_BY_TYPE.get(most, most).upper()


def shown_metadata(model: GgufModel) -> dict[str, Json]:
    """Return the GGUF metadata as JSON values: long arrays become empty, non-finite numbers None."""
    shown: dict[str, Json] = {}
    for key, value in model.metadata.items():
        if key in ("tokenizer.chat_template", "general.name"):
            continue
        if isinstance(value, list):
            shown[key] = value if len(value) <= SHOWN_ITEMS else []
        elif isinstance(value, np.ndarray):
            shown[key] = [_finite(item) for item in value.tolist()] if len(value) <= SHOWN_ITEMS else []
        else:
            shown[key] = _finite(value)
    shown["general.parameter_count"] = sum(tensor.num_values for tensor in model.tensors)
    return shown


def _finite(value: bool | int | float | str) -> Json:
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    return value
