"""Write a model as FTW: tensors stream into one dense blob, then the config that describes it.

Memory stays bounded by the slabs that the caller hands in: nothing is kept but offsets and hashes. Only
``finish`` makes blobs visible; leaving the ``with`` block early leaves nothing behind.
"""

import hashlib
from collections.abc import Iterable, Sequence
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
    PLANE_ALIGNMENT_BYTES,
    TENSOR_ALIGNMENT_BYTES,
    BlobEntry,
    FtwConfig,
    PlaneEntry,
    TensorEntry,
    align,
    encode_config,
    plane_bytes,
)
from ftd.ftw.sink import BlobSink
from ftd.kernels.quant import FORMATS, QuantMatrix

_ZEROS = bytes(TENSOR_ALIGNMENT_BYTES)
_PARALLEL_BYTES = 1 << 20  # from here on chunk hashes beside the sink's own hash are worth a thread switch


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

    def __init__(self, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._hash = hashlib.sha256()
        self._filled = 0
        self._done: list[str] = []

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
        return self._done

    def _next(self) -> None:
        self._done.append(self._hash.hexdigest())
        self._hash, self._filled = hashlib.sha256(), 0


class FtwWriter:
    """Streams tensors into one dense blob of ``sink``. One thread; leaving its context aborts."""

    def __init__(self, sink: BlobSink, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._sink = sink
        self._chunk_bytes = chunk_bytes
        self._blob = sink.new()
        self._chunks = ChunkHasher(chunk_bytes)
        self._hasher = ThreadPoolExecutor(1, "ftw-hash")
        self._position = 0
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
        for plane, slabs, num_bytes in zip(spec.planes, planes, sizes, strict=True):
            self._pad(alignment)
            start = self._position
            for slab in slabs:
                self._write(np.ascontiguousarray(slab).reshape(-1).view(np.uint8).data)
            if self._position - start != num_bytes:
                raise InvalidFtw(
                    f"{name}.{plane.name} of {format} {list(shape)} has {self._position - start} bytes "
                    f"instead of {num_bytes}"
                )
            entries.append(PlaneEntry(name=plane.name, offset=start))
            alignment = PLANE_ALIGNMENT_BYTES
        self._tensors.append(TensorEntry(name=name, format=format, shape=shape, planes=entries))

    def add_matrix(self, name: str, matrix: QuantMatrix) -> None:
        """Append a tensor that is in memory."""
        self.add(name, matrix.format, matrix.shape, [[plane] for plane in matrix.planes])

    def finish(self, draft: FtwConfig) -> WrittenModel:
        """Commit the dense blob and the config: ``draft`` with the tensors and blobs that were written."""
        if not self._tensors:
            raise InvalidFtw("a model without tensors cannot be written")
        self._pad(TENSOR_ALIGNMENT_BYTES)
        chunks = self._chunks.finish()
        entry = BlobEntry(
            digest=f"sha256:{'0' * 64}",
            size=self._position,
            media_type=DENSE_MEDIA_TYPE,
            chunk_bytes=self._chunk_bytes,
            chunks=chunks,
        )
        # Everything but the digest is checked before the first blob becomes visible.
        config = msgspec.structs.replace(draft, tensors=self._tensors, blobs=[entry])
        encode_config(config)
        digest, size = self._blob.commit()
        config = msgspec.structs.replace(config, blobs=[msgspec.structs.replace(entry, digest=digest)])
        with self._sink.new() as blob:
            blob.write(encode_config(config))
            config_blob = BlobDescriptor(CONFIG_MEDIA_TYPE, *blob.commit())
        return WrittenModel(config, config_blob, (BlobDescriptor(DENSE_MEDIA_TYPE, digest, size),))

    def _pad(self, alignment: int) -> None:
        missing = align(self._position, alignment) - self._position
        if missing:
            self._write(memoryview(_ZEROS)[:missing])

    def _write(self, data: memoryview) -> None:
        if len(data) < _PARALLEL_BYTES:
            self._chunks.update(data)
            self._blob.write(data)
        else:
            hashed = self._hasher.submit(self._chunks.update, data)
            self._blob.write(data)
            hashed.result()
        self._position += len(data)

    def __enter__(self) -> Self:
        self._blob.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hasher.shutdown()
        self._blob.__exit__(kind, error, trace)
