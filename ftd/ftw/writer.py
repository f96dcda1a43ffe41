"""Write a model as FTW: tensors stream into one dense blob, expert records into blobs of their own, and the
config describes them.

Memory stays bounded by the slabs that the caller hands in and by one expert record: nothing else is kept but
offsets and hashes. Only ``finish`` makes blobs visible; leaving the ``with`` block early leaves nothing
behind.

With a ``key`` a conversion whose process was killed is gone on with: the same key stands for the same bytes,
so what lies staged under it is not made again. Tensors and records inside it are not even read.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from ftd.errors import InvalidFtw
from ftd.ftw.format import (
    CHUNK_BYTES,
    CONFIG_MEDIA_TYPE,
    DENSE_MEDIA_TYPE,
    EXPERTS_MEDIA_TYPE,
    PLANE_ALIGNMENT_BYTES,
    TENSOR_ALIGNMENT_BYTES,
    BlobEntry,
    ExpertLayer,
    Experts,
    FtwConfig,
    PlaneEntry,
    TensorEntry,
    align,
    encode_config,
    plane_bytes,
)
from ftd.ftw.sink import BlobSink
from ftd.kernels.quant import FORMATS, QuantFormat, QuantMatrix

EXPERT_BLOB_BYTES = 2 << 30  # few files, and none too large to fetch again
_ZEROS = bytes(TENSOR_ALIGNMENT_BYTES)
_PARALLEL_BYTES = 1 << 20  # from here on chunk hashes beside the sink's own hash are worth a thread switch


# One tensor of every expert of a layer: its role (gate, up, down, gate_bias …), format and shape [N, K]
ExpertTensor = tuple[str, str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class BlobDescriptor:
    """What a manifest says about one blob."""

    media_type: str
    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class WrittenModel:
    """The finished config, its descriptor, and the descriptors of the weights."""

    config: FtwConfig
    config_blob: BlobDescriptor
    weights: tuple[BlobDescriptor, ...]


class ChunkHasher:
    """The sha256 of every ``chunk_bytes`` of a stream."""

    def __init__(self, chunk_bytes: int, done: Sequence[str] = ()) -> None:
        self._chunk_bytes = chunk_bytes
        self._hash = hashlib.sha256()
        self._filled = 0
        self.done = list(done)

    def update(self, data: memoryview) -> None:
        """Add bytes of the stream."""
        while data:
            part = data[: self._chunk_bytes - self._filled]
            self._hash.update(part)
            self._filled += len(part)
            data = data[len(part) :]
            if self._filled == self._chunk_bytes:
                self._next()

    def finish(self) -> list[str]:
        """Return the hashes, the last one of a short chunk if there is a rest."""
        if self._filled:
            self._next()
        return self.done

    def _next(self) -> None:
        self.done.append(self._hash.hexdigest())
        self._hash, self._filled = hashlib.sha256(), 0


class _BlobStream:
    """One blob while it is written: its size so far, the hashes of its chunks, and padding."""

    def __init__(
        self, sink: BlobSink, media_type: str, chunk_bytes: int, hasher: ThreadPoolExecutor, name: str | None
    ) -> None:
        self._staged = None if name is None else sink.stage(name, chunk_bytes)
        self._blob = self._staged or sink.new()
        self._media_type = media_type
        self._chunk_bytes = chunk_bytes
        self._chunks = ChunkHasher(chunk_bytes, self._staged.chunks if self._staged else ())
        self._hasher = hasher
        self.kept = self._staged.kept if self._staged else 0
        self._noted = len(self._chunks.done)
        self.position = 0

    def write(self, data: memoryview) -> None:
        """Append bytes; those that are there already are not written again."""
        self.position += len(data)
        data = data[max(self.kept - (self.position - len(data)), 0) :]
        if len(data) < _PARALLEL_BYTES:
            self._chunks.update(data)
            self._blob.write(data)
        else:
            hashed = self._hasher.submit(self._chunks.update, data)
            self._blob.write(data)
            hashed.result()
        self._note()

    def end(self) -> None:
        """Say that no more bytes come."""
        self._chunks.finish()
        self._note()

    def _note(self) -> None:
        if self._staged is not None:
            for chunk in self._chunks.done[self._noted :]:
                self._staged.checkpoint(chunk)
        self._noted = len(self._chunks.done)

    def skip(self, position: int) -> bool:
        """Move on to ``position`` if all bytes before it are there already; say whether they are."""
        if position > self.kept:
            return False
        self.position = position
        return True

    def pad(self, alignment: int) -> None:
        """Append zeros up to a multiple of ``alignment``."""
        missing = align(self.position, alignment) - self.position
        if missing:
            self.write(memoryview(_ZEROS)[:missing])

    def entry(self, index: int) -> BlobEntry:
        """Return the entry of the finished blob, with ``index`` in place of its digest."""
        return BlobEntry(
            digest=f"sha256:{index:064x}",
            size=self.position,
            media_type=self._media_type,
            chunk_bytes=self._chunk_bytes,
            chunks=self._chunks.finish(),
        )

    def commit(self, entry: BlobEntry) -> BlobEntry:
        """Make the blob visible and return its entry with its digest."""
        return msgspec.structs.replace(entry, digest=self._blob.commit()[0])

    def abort(self) -> None:
        """Drop the blob unless it was committed."""
        self._blob.abort()


class _Records:
    """The expert records of a model on their way into blobs; holds one record."""

    def __init__(
        self,
        num_experts: int,
        layers: Sequence[int],
        shapes: Sequence[Sequence[ExpertTensor]],
        blob_bytes: int,
    ) -> None:
        layouts: list[list[TensorEntry]] = []
        rows, record_bytes = [], TENSOR_ALIGNMENT_BYTES
        for layer, tensors in zip(layers, shapes, strict=True):
            layout, num_bytes = _layout(tensors)
            if layout not in layouts:
                layouts.append(layout)
            rows.append(ExpertLayer(layer=layer, layout=layouts.index(layout)))
            record_bytes = max(record_bytes, num_bytes)
        per_blob = max(blob_bytes // record_bytes, 1)
        self.draft = Experts(
            num_experts=num_experts,
            record_bytes=record_bytes,
            records_per_blob=per_blob,
            blobs=list(range(1, 1 - (-len(rows) * num_experts // per_blob))),
            layers=rows,
            layouts=layouts,
        )
        self.count = 0
        self._record = np.zeros(record_bytes, np.uint8)

    @property
    def missing(self) -> int:
        """How many records are still to come."""
        return len(self.draft.layers) * self.draft.num_experts - self.count

    def next(self, matrices: Mapping[str, QuantMatrix]) -> memoryview:
        """Return the bytes of the next record, valid until the next call."""
        row, expert = divmod(self.count, self.draft.num_experts)
        if expert == 0:
            self._record[:] = 0  # another layout leaves other gaps
        layout = self.draft.layouts[self.draft.layers[row].layout]
        if matrices.keys() != {entry.name for entry in layout}:
            raise InvalidFtw(f"record {self.count} has other tensors than its layout: {' '.join(matrices)}")
        for entry in layout:
            matrix = matrices[entry.name]
            if (matrix.format, matrix.shape) != (entry.format, entry.shape):
                raise InvalidFtw(
                    f"{entry.name} of record {self.count} is {matrix.format} {list(matrix.shape)} "
                    f"instead of {entry.format} {list(entry.shape)}"
                )
            for place, plane in zip(entry.planes, matrix.planes, strict=True):
                data = np.ascontiguousarray(plane).reshape(-1).view(np.uint8)
                self._record[place.offset : place.offset + len(data)] = data
        self.count += 1
        return self._record.data


def _places(spec: QuantFormat, shape: tuple[int, int], position: int) -> tuple[list[PlaneEntry], int]:
    """Place the planes of a tensor from ``position`` on; return their entries and where the last one ends."""
    planes, alignment = [], TENSOR_ALIGNMENT_BYTES
    for plane, num_bytes in zip(spec.planes, plane_bytes(spec, shape), strict=True):
        position = align(position, alignment)
        planes.append(PlaneEntry(name=plane.name, offset=position))
        position += num_bytes
        alignment = PLANE_ALIGNMENT_BYTES
    return planes, position


def _layout(tensors: Sequence[ExpertTensor]) -> tuple[list[TensorEntry], int]:
    """Place the tensors of one expert; return their entries and the bytes of a record."""
    layout, position = [], 0
    for role, format, shape in tensors:
        planes, position = _places(FORMATS[format], shape, position)
        layout.append(TensorEntry(name=role, format=format, shape=shape, planes=planes))
    return layout, align(position, TENSOR_ALIGNMENT_BYTES)


class FtwWriter:
    """Streams tensors into one dense blob of ``sink`` and experts into others. One thread; leaving aborts."""

    def __init__(
        self,
        sink: BlobSink,
        chunk_bytes: int = CHUNK_BYTES,
        expert_blob_bytes: int = EXPERT_BLOB_BYTES,
        key: str | None = None,
    ) -> None:
        """Begin; ``key`` names the source, how it is converted and by which version, or is None."""
        self._sink = sink
        self._key = key
        self._chunk_bytes = chunk_bytes
        self._expert_blob_bytes = expert_blob_bytes
        self._hasher = ThreadPoolExecutor(1, "ftw-hash")
        self._streams: list[_BlobStream] = []
        self._dense = self._stream(DENSE_MEDIA_TYPE)
        self._records: _Records | None = None
        self._tensors: list[TensorEntry] = []

    def add(
        self,
        name: str,
        format: str,
        shape: tuple[int, int],
        planes: Sequence[Iterable[NDArray[np.generic]]],
    ) -> None:
        """Append one ``[N, K]`` tensor; each plane comes as slabs of rows, in order."""
        spec = FORMATS[format]
        entries = []
        alignment = TENSOR_ALIGNMENT_BYTES
        sizes = plane_bytes(spec, shape)
        placed, end = _places(spec, shape, self._dense.position)
        if self._dense.skip(end):
            self._tensors.append(TensorEntry(name=name, format=format, shape=shape, planes=placed))
            return
        for plane, slabs, num_bytes in zip(spec.planes, planes, sizes, strict=True):
            self._dense.pad(alignment)
            start = self._dense.position
            for slab in slabs:
                self._dense.write(np.ascontiguousarray(slab).reshape(-1).view(np.uint8).data)
            if self._dense.position - start != num_bytes:
                raise InvalidFtw(
                    f"{name}.{plane.name} of {format} {list(shape)} has {self._dense.position - start} bytes "
                    f"instead of {num_bytes}"
                )
            entries.append(PlaneEntry(name=plane.name, offset=start))
            alignment = PLANE_ALIGNMENT_BYTES
        self._tensors.append(TensorEntry(name=name, format=format, shape=shape, planes=entries))

    def add_matrix(self, name: str, matrix: QuantMatrix) -> None:
        """Append a tensor that is in memory."""
        self.add(name, matrix.format, matrix.shape, [[plane] for plane in matrix.planes])

    def begin_experts(
        self, num_experts: int, layers: Sequence[int], tensors: Sequence[Sequence[ExpertTensor]]
    ) -> None:
        """Say what the records hold, once: ``tensors[i]`` are those of each expert of layer ``layers[i]``."""
        assert self._records is None
        self._records = _Records(num_experts, layers, tensors, self._expert_blob_bytes)

    def has_expert(self, number: int) -> bool:
        """Say whether record ``number``, counted over all layers, lies staged: ``add_expert`` needs no more.

        Ask for one number after the other.
        """
        assert self._records is not None
        record_bytes, per_blob = self._records.draft.record_bytes, self._records.draft.records_per_blob
        return self._expert_stream(number).kept >= (number % per_blob + 1) * record_bytes

    def add_expert(self, matrices: Mapping[str, QuantMatrix] | None) -> None:
        """Append the next record: all experts of the first layer, then those of the next.

        None if ``has_expert`` said that it lies staged.
        """
        records = self._records
        assert records is not None and records.missing
        stream = self._expert_stream(records.count)
        if matrices is None:
            records.count += 1
            is_there = stream.skip(stream.position + records.draft.record_bytes)
            assert is_there, records.count
        else:
            stream.write(records.next(matrices))
        if records.count % records.draft.records_per_blob == 0 or not records.missing:
            stream.end()

    def _expert_stream(self, number: int) -> _BlobStream:
        """Return the blob of record ``number``; begin it if it is the next one."""
        assert self._records is not None
        index = 1 + number // self._records.draft.records_per_blob
        return self._stream(EXPERTS_MEDIA_TYPE) if index == len(self._streams) else self._streams[index]

    def _stream(self, media_type: str) -> _BlobStream:
        """Begin the next blob."""
        name = None if self._key is None else f"{self._key}-{len(self._streams)}"
        stream = _BlobStream(self._sink, media_type, self._chunk_bytes, self._hasher, name)
        self._streams.append(stream)
        return stream

    def finish(self, draft: FtwConfig) -> WrittenModel:
        """Commit all blobs and the config: ``draft`` with the tensors and blobs that were written."""
        if not self._tensors:
            raise InvalidFtw("a model without tensors cannot be written")
        if self._records is not None and self._records.missing:
            raise InvalidFtw(f"{self._records.missing} expert records are missing")
        self._dense.pad(TENSOR_ALIGNMENT_BYTES)
        entries = [stream.entry(index) for index, stream in enumerate(self._streams)]
        experts = None if self._records is None else self._records.draft
        # Everything but the digests is checked before the first blob becomes visible.
        config = msgspec.structs.replace(draft, tensors=self._tensors, blobs=entries, experts=experts)
        encode_config(config)
        entries = [stream.commit(entry) for stream, entry in zip(self._streams, entries, strict=True)]
        config = msgspec.structs.replace(config, blobs=entries)
        with self._sink.new() as blob:
            blob.write(encode_config(config))
            config_blob = BlobDescriptor(CONFIG_MEDIA_TYPE, *blob.commit())
        weights = tuple(BlobDescriptor(entry.media_type, entry.digest, entry.size) for entry in entries)
        return WrittenModel(config, config_blob, weights)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hasher.shutdown()
        for stream in self._streams:
            stream.abort()
