"""FTW version 1: how a model's weights lie on disk, and the one function that decides if a config is true.

    config blob   application/vnd.ftd.config.v1+json      UTF-8 JSON of FtwConfig, at most 64 MiB
    dense blob    application/vnd.ftd.weights.dense.v1    every tensor outside the experts
    expert blobs  application/vnd.ftd.weights.experts.v1  expert records, never split over two blobs
    tokenizer     application/vnd.ftd.tokenizer.v1+json   tokenizer.json; named by the manifest only

A dense blob is planes and zero padding; the tensor table in the config says where each plane lies:

    0           4096                    8192
    ├ tensor 0 ─┴── plane ┄ 64 ┄ plane ┄┼ tensor 1 ──── plane ┄ 64 ┄ plane ┄┄ zeros to a multiple of 4096 ┤
      first plane of a tensor: offset = 0 mod 4096       its other planes: offset = 0 mod 64

Planes are those of ``ftd.kernels.quant.FORMATS`` in that order: row-major, little-endian, N rows. A 1-D
tensor has shape [1, D]. Blob sizes are multiples of 4096, so that the last block can be read with direct I/O.

An expert record is one run of S bytes (S = 0 mod 4096, the same for all records) with every tensor of one
expert of one layer; ``experts.layouts`` says where each plane lies inside a record, offsets as above but from
its start:

    flat id = l * E + e          l counts the rows of experts.layers, e the experts of that layer
    blob    = experts.blobs[flat // records_per_blob]
    offset  = (flat % records_per_blob) * S          every blob is full except the last

Each blob carries the sha256 of every ``chunk_bytes`` of it (the last chunk may be short), so that one bad
chunk is found, and fetched again, alone. Nothing here is trusted before ``validate`` returned: all sizes are
Python integers.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ftd.errors import FtdError, InvalidFtw
from ftd.kernels.quant import FORMATS, QuantFormat
from ftd.names import parse_digest

VERSION = 1
CONFIG_MEDIA_TYPE = "application/vnd.ftd.config.v1+json"
DENSE_MEDIA_TYPE = "application/vnd.ftd.weights.dense.v1"
EXPERTS_MEDIA_TYPE = "application/vnd.ftd.weights.experts.v1"
TOKENIZER_MEDIA_TYPE = "application/vnd.ftd.tokenizer.v1+json"

TENSOR_ALIGNMENT_BYTES = 4096  # O_DIRECT reads whole blocks at block-aligned offsets
PLANE_ALIGNMENT_BYTES = 64  # one cache line, one AVX-512 register
CHUNK_BYTES = 64 << 20
MAX_CONFIG_BYTES = 64 << 20
MAX_TENSORS = 1 << 17
MAX_BLOBS = 1 << 14
MAX_BLOB_BYTES = 1 << 46
MAX_EXPERT_LAYERS = 1 << 12
MAX_EXPERTS = 1 << 16
MAX_VOCAB = 1 << 24

# Model types that are encoders: their attention sees both directions, and they give vectors
ENCODER_TYPES = frozenset(("bert", "nomic_bert"))

_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,256}", re.ASCII)
_HEX = re.compile(r"[0-9a-f]{64}", re.ASCII)

Json = None | bool | int | float | str | list[Any] | dict[str, Any]


class PlaneEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Where one plane begins, in bytes from the start of its blob (or of its expert record)."""

    name: str
    offset: int


class TensorEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One ``[N, K]`` tensor: its format, its shape, the index of its blob and the offsets of its planes."""

    name: str
    format: str
    shape: tuple[int, int]
    blob: int = 0
    planes: list[PlaneEntry]


class BlobEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One blob of weights: ``sha256:`` digest, size, and the sha256 (hex) of every ``chunk_bytes`` of it."""

    digest: str
    size: int
    media_type: str
    chunk_bytes: int
    chunks: list[str]


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """Special ids. ``eos_ids`` holds every id that ends a generation."""

    bos_id: int | None = None
    eos_ids: list[int] = []
    pad_id: int | None = None
    add_bos: bool = False
    add_eos: bool = False


class ExpertLayer(msgspec.Struct, frozen=True, kw_only=True):
    """The transformer layer that a row of expert records belongs to, and which record layout it uses."""

    layer: int
    layout: int


class Experts(msgspec.Struct, frozen=True, kw_only=True):
    """The expert records: ``len(layers) * num_experts`` records of ``record_bytes`` in ``blobs``."""

    num_experts: int
    record_bytes: int
    records_per_blob: int
    blobs: list[int]
    layers: list[ExpertLayer]
    layouts: list[list[TensorEntry]]


class FtwConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a model except its weights, its tokenizer and its prompts.

    architecture and hyperparameters use Hugging Face's names (model_type, config.json); metadata is for
    people.
    """

    format: str = "ftw"
    version: int = VERSION
    architecture: str
    hyperparameters: dict[str, Json]
    quantization: str
    parameter_count: int
    tokens: Tokens
    tensors: list[TensorEntry]
    blobs: list[BlobEntry]
    experts: Experts | None = None
    metadata: dict[str, Json] = {}
    provenance: dict[str, Json] = {}


def parse_config(data: bytes) -> FtwConfig:
    """Return the validated config in ``data``; raise InvalidFtw."""
    if len(data) > MAX_CONFIG_BYTES:
        raise InvalidFtw(f"config is larger than {MAX_CONFIG_BYTES} bytes: {len(data)}")
    try:
        config = msgspec.json.decode(data, type=FtwConfig)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as exc:
        raise InvalidFtw(f"config is not FTW: {exc}"[:300], "create the model again") from exc
    validate(config)
    return config


def encode_config(config: FtwConfig) -> bytes:
    """Return the bytes of a config, which depend on its values alone; raise InvalidFtw if it is not valid."""
    validate(config)
    return msgspec.json.encode(config) + b"\n"


def align(offset: int, alignment: int) -> int:
    """Return the least multiple of ``alignment`` that is not below ``offset``."""
    return -(-offset // alignment) * alignment


def plane_bytes(spec: QuantFormat, shape: tuple[int, int]) -> list[int]:
    """Return the bytes of each plane of a ``[N, K]`` tensor, as Python integers of any size."""
    sizes = []
    for plane in spec.planes:
        rows, items = spec.plane_shape(plane, shape)
        sizes.append(rows * items * plane.item_bytes)
    return sizes


def validate(config: FtwConfig, blob_sizes: Mapping[str, int] | None = None) -> None:
    """Raise InvalidFtw unless every number in ``config`` is possible and fits the others.

    blob_sizes: digest -> bytes on disk; given, every blob must be there with exactly its size.
    """
    if config.format != "ftw" or config.version != VERSION:
        raise InvalidFtw(
            f"not FTW version {VERSION}: {config.format!r:.20} version {config.version}",
            "update ftd or create the model again",
        )
    _within("parameter_count", config.parameter_count, 0, 1 << 60)
    _within("number of tensors", len(config.tensors), 0, MAX_TENSORS)
    _within("number of blobs", len(config.blobs), 0, MAX_BLOBS)
    _check_tokens(config)
    for blob in config.blobs:
        _check_blob(blob)
        if blob_sizes is not None and blob_sizes.get(blob.digest) != blob.size:
            raise InvalidFtw(f"{blob.digest} has {blob_sizes.get(blob.digest)} bytes instead of {blob.size}")
    if len({blob.digest for blob in config.blobs}) != len(config.blobs):
        raise InvalidFtw("two blobs have the same digest")
    expert_blobs = set(_check_experts(config))
    runs: dict[int, list[tuple[int, int, str]]] = {}
    names: set[str] = set()
    for entry in config.tensors:
        if entry.name in names:
            raise InvalidFtw(f"two tensors have the same name: {entry.name!r:.100}")
        names.add(entry.name)
        if not 0 <= entry.blob < len(config.blobs) or entry.blob in expert_blobs:
            raise InvalidFtw(f"tensor {entry.name!r:.100} lies in no dense blob: {entry.blob}")
        runs.setdefault(entry.blob, []).extend(_check_tensor(entry, config.blobs[entry.blob].size))
    for blob_runs in runs.values():
        _check_disjoint(blob_runs)


def _within(what: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidFtw(f"{what} is not between {low} and {high}: {value}")


def _check_tokens(config: FtwConfig) -> None:
    vocab = config.hyperparameters.get("vocab_size", MAX_VOCAB)
    if not isinstance(vocab, int) or isinstance(vocab, bool):
        raise InvalidFtw(f"vocab_size is not an integer: {vocab!r:.50}")
    _within("vocab_size", vocab, 1, MAX_VOCAB)
    tokens = config.tokens
    _within("number of eos_ids", len(tokens.eos_ids), 0, 1024)
    for token_id in (tokens.bos_id, tokens.pad_id, *tokens.eos_ids):
        if token_id is not None:
            _within("token id", token_id, 0, vocab - 1)


def _check_blob(blob: BlobEntry) -> None:
    try:
        parse_digest(blob.digest)
    except FtdError as exc:
        raise InvalidFtw(exc.message, exc.hint) from exc
    _within("blob size", blob.size, TENSOR_ALIGNMENT_BYTES, MAX_BLOB_BYTES)
    _within("chunk_bytes", blob.chunk_bytes, TENSOR_ALIGNMENT_BYTES, 1 << 30)
    if blob.size % TENSOR_ALIGNMENT_BYTES or blob.chunk_bytes % TENSOR_ALIGNMENT_BYTES:
        raise InvalidFtw(
            f"blob size and chunk_bytes are not multiples of 4096: {blob.size} {blob.chunk_bytes}"
        )
    wanted = -(-blob.size // blob.chunk_bytes)
    if len(blob.chunks) != wanted:
        raise InvalidFtw(f"a blob of {blob.size} bytes has {wanted} chunks, not {len(blob.chunks)}")
    for chunk in blob.chunks:
        if not _HEX.fullmatch(chunk):
            raise InvalidFtw(f"a chunk hash is not 64 lower-case hex digits: {chunk!r:.80}")


def _check_tensor(entry: TensorEntry, size: int) -> Iterator[tuple[int, int, str]]:
    """Yield (start, end, label) of each plane once it is known to fit a blob or record of ``size`` bytes."""
    if not _NAME.fullmatch(entry.name):
        raise InvalidFtw(f"tensor name is not allowed: {entry.name!r:.100}")
    spec = FORMATS.get(entry.format)
    if spec is None:
        raise InvalidFtw(f"tensor {entry.name} has an unknown format: {entry.format!r:.50}")
    rows, columns = entry.shape
    if rows <= 0 or columns <= 0 or columns % spec.block:
        raise InvalidFtw(f"tensor {entry.name} needs K in blocks of {spec.block}: shape [{rows}, {columns}]")
    if [plane.name for plane in entry.planes] != [plane.name for plane in spec.planes]:
        raise InvalidFtw(f"tensor {entry.name} lacks the planes of {entry.format}")
    alignment = TENSOR_ALIGNMENT_BYTES
    for plane, num_bytes in zip(entry.planes, plane_bytes(spec, (rows, columns)), strict=True):
        if plane.offset < 0 or plane.offset % alignment:
            raise InvalidFtw(
                f"{entry.name}.{plane.name} is not at a multiple of {alignment}: offset {plane.offset}"
            )
        if plane.offset + num_bytes > size:
            raise InvalidFtw(
                f"{entry.name}.{plane.name} ends behind its blob: {plane.offset} + {num_bytes} > {size}"
            )
        yield plane.offset, plane.offset + num_bytes, f"{entry.name}.{plane.name}"
        alignment = PLANE_ALIGNMENT_BYTES


def _check_disjoint(runs: Iterable[tuple[int, int, str]]) -> None:
    end, label = 0, ""
    for start, next_end, next_label in sorted(runs):
        if start < end:
            raise InvalidFtw(f"planes overlap: {label} ends at {end}, {next_label} starts at {start}")
        end, label = next_end, next_label


def _check_experts(config: FtwConfig) -> Sequence[int]:
    """Check the record layout and return the indices of the expert blobs."""
    experts = config.experts
    if experts is None:
        return ()
    _within("num_experts", experts.num_experts, 1, MAX_EXPERTS)
    _within("number of expert layers", len(experts.layers), 1, MAX_EXPERT_LAYERS)
    _within("number of record layouts", len(experts.layouts), 1, MAX_EXPERT_LAYERS)
    _within("record_bytes", experts.record_bytes, TENSOR_ALIGNMENT_BYTES, 1 << 40)
    if experts.record_bytes % TENSOR_ALIGNMENT_BYTES:
        raise InvalidFtw(f"record_bytes is not a multiple of 4096: {experts.record_bytes}")
    _within("records_per_blob", experts.records_per_blob, 1, MAX_EXPERTS * MAX_EXPERT_LAYERS)
    if len({layer.layer for layer in experts.layers}) != len(experts.layers):
        raise InvalidFtw("two rows of expert records belong to one layer")
    for layer in experts.layers:
        _within("layer of an expert row", layer.layer, 0, MAX_EXPERT_LAYERS)
        _within("layout of an expert row", layer.layout, 0, len(experts.layouts) - 1)
    for layout in experts.layouts:
        if len({entry.name for entry in layout}) != len(layout):
            raise InvalidFtw("two tensors of a record layout have the same name")
        _check_disjoint(run for entry in layout for run in _check_tensor(entry, experts.record_bytes))
    records = len(experts.layers) * experts.num_experts
    if len(experts.blobs) != math.ceil(records / experts.records_per_blob) or len(set(experts.blobs)) != len(
        experts.blobs
    ):
        raise InvalidFtw(f"{records} records do not fill {len(experts.blobs)} blobs")
    for position, index in enumerate(experts.blobs):
        _within("index of an expert blob", index, 0, len(config.blobs) - 1)
        held = min(experts.records_per_blob, records - position * experts.records_per_blob)
        if config.blobs[index].size != held * experts.record_bytes:
            raise InvalidFtw(
                f"expert blob {index} has {config.blobs[index].size} bytes "
                f"instead of {held} records of {experts.record_bytes}"
            )
    return experts.blobs
