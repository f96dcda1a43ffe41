"""The writer of one blob: bytes are hashed on the way, and appear under their digest once it is verified."""

import os
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ftd.errors import DigestMismatch
from ftd.hashing import StreamHash

if TYPE_CHECKING:
    from ftd.registry.blobs import BlobStore


class BlobWriter:
    """One blob being written. Owned by one thread at a time; nothing is visible before ``commit``.

    As a context manager it aborts on leaving unless it was committed.
    """

    def __init__(self, store: "BlobStore", path: Path, fd: int) -> None:
        """Take over an open and locked file without bytes."""
        self._store, self._path, self._fd = store, path, fd
        self._hash = StreamHash()
        self.size = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes."""
        if self._fd < 0:
            raise ValueError("write on a closed blob writer")
        view = memoryview(data).cast("B")
        self._hash.update(view, self._append)
        self.size += len(view)

    def _append(self, view: memoryview) -> None:
        while view:
            view = view[os.write(self._fd, view) :]

    def commit(self, expected: str | None = None) -> tuple[str, int]:
        """Verify, sync and publish the blob; return its digest and size, or raise DigestMismatch."""
        if self._fd < 0:
            raise ValueError("commit on a closed blob writer")
        digest = f"sha256:{self._hash.hexdigest()}"
        if expected is not None and expected != digest:
            self.abort()
            raise DigestMismatch(f'digest mismatch, expected "{expected}", got "{digest}"')
        os.fsync(self._fd)
        os.rename(self._path, self._store.path(digest))
        self._close()
        self._store.sync()
        return digest, self.size

    def abort(self) -> None:
        """Drop what was written; harmless after ``commit``."""
        if self._fd >= 0:
            self._path.unlink(missing_ok=True)
            self._close()

    def _close(self) -> None:
        self._hash.close()
        os.close(self._fd)
        self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()
