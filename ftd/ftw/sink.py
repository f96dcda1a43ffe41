"""Where new blobs go: the protocols that the writer needs, and a sink that is a plain directory.

``ftd.registry`` has the sink of the store. A blob appears under its name only after ``commit``: bytes go to a
temporary file, then fsync, then rename; leaving the ``with`` block without a commit removes what was written.
"""

import os
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from ftd.errors import DigestMismatch
from ftd.hashing import StreamHash


class BlobWriter(Protocol):
    """One blob while it is written."""

    def write(self, data: bytes | memoryview, /) -> object:
        """Append ``data``."""

    def commit(self, expected: str | None = None) -> tuple[str, int]:
        """Name the blob by its digest and return (digest, size); raise DigestMismatch if not ``expected``."""

    def abort(self) -> None:
        """Throw away what was written."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> object: ...


class StagedBlobWriter(BlobWriter, Protocol):
    """One blob that an earlier writer may have begun: its first ``kept`` bytes are there.

    chunks: the sha256 (hex) of each whole chunk of them.
    """

    kept: int
    chunks: list[str]

    def checkpoint(self, chunk: str, /) -> None:
        """Note the sha256 (hex) of the next chunk, whose bytes were all written."""

    def __enter__(self) -> Self: ...


class BlobSink(Protocol):
    """Makes blob writers."""

    def new(self) -> BlobWriter:
        """Return a writer for one more blob."""

    def stage(self, name: str, chunk_bytes: int, /) -> StagedBlobWriter | None:
        """Go on with the blob staged under ``name``, or start it; None where that is not possible."""


class DirectorySink:
    """Blobs as ``sha256-<hex>`` files of one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def new(self) -> "DirectoryBlobWriter":
        """Return a writer for one more blob."""
        return DirectoryBlobWriter(self.directory)

    def stage(self, name: str, chunk_bytes: int) -> None:
        """Say that nothing is staged here."""
        return None

    def path(self, digest: str) -> Path:
        """Return where the blob of ``digest`` lies or would lie."""
        return self.directory / digest.replace(":", "-")


class DirectoryBlobWriter:
    """A temporary file in the sink's directory; owns its file descriptor until commit or abort."""

    def __init__(self, directory: Path) -> None:
        descriptor, name = tempfile.mkstemp(prefix="partial-", dir=directory)
        self._file = os.fdopen(descriptor, "wb")
        self._path = Path(name)
        self._hash = StreamHash()
        self._size = 0

    def write(self, data: bytes | memoryview) -> None:
        """Append ``data``."""
        self._hash.update(memoryview(data).cast("B"), self._file.write)
        self._size += len(data)

    def commit(self, expected: str | None = None) -> tuple[str, int]:
        """Flush to disk, rename, and return (digest, size)."""
        digest = f"sha256:{self._hash.hexdigest()}"
        if expected is not None and expected != digest:
            self.abort()
            raise DigestMismatch(f"blob has digest {digest}, expected {expected}")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._hash.close()
        os.replace(self._path, self._path.parent / digest.replace(":", "-"))
        return digest, self._size

    def abort(self) -> None:
        """Remove the temporary file, if there still is one."""
        self._hash.close()
        self._file.close()
        self._path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()
