"""A blob sink in memory: what the FTW writer needs of a store, without a disk."""

import hashlib
from typing import Any, Self


class MemorySink:
    """Blobs by digest; ``open_writers`` counts those neither committed nor aborted."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.open_writers = 0

    def new(self) -> "MemoryBlobWriter":
        """Return a writer for one more blob."""
        return MemoryBlobWriter(self)

    def stage(self, name: str, chunk_bytes: int) -> None:
        """Say that nothing is staged here."""


class MemoryBlobWriter:
    """One blob while it is written."""

    def __init__(self, sink: MemorySink) -> None:
        self._sink = sink
        self._data = bytearray()
        self._open = True
        sink.open_writers += 1

    def write(self, data: bytes | memoryview) -> None:
        """Append ``data``."""
        self._data += data

    def commit(self, expected: str | None = None) -> tuple[str, int]:
        """Name the blob by its digest."""
        assert expected is None
        digest = f"sha256:{hashlib.sha256(self._data).hexdigest()}"
        self._sink.blobs[digest] = bytes(self._data)
        self.abort()
        return digest, len(self._data)

    def abort(self) -> None:
        """Throw away what was not committed."""
        self._sink.open_writers -= self._open
        self._open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *rest: Any) -> None:
        self.abort()
