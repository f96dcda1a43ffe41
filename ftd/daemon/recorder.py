"""What a create has committed, so that a failure can take it back."""

import contextlib

from ftd.ftw.sink import BlobWriter, StagedBlobWriter
from ftd.registry.store import Store


class Recorder:
    """A sink that remembers what was committed through it, to take it back, and holds it until then."""

    def __init__(self, store: Store, hold: contextlib.ExitStack) -> None:
        self._store = store
        self._hold = hold
        self.digests: list[str] = []

    def new(self) -> BlobWriter:
        """Start a blob."""
        return _Writer(self._store.blobs.new(), self)

    def stage(self, name: str, chunk_bytes: int) -> StagedBlobWriter | None:
        """Go on with a staged blob."""
        staged = self._store.blobs.stage(name, chunk_bytes)
        return None if staged is None else _StagedWriter(staged, self)

    def add(self, digest: str) -> None:
        """Note a committed blob."""
        self._hold.enter_context(self._store.hold([digest]))
        self.digests.append(digest)


class _Writer:
    """A blob writer that notes its digest on commit."""

    def __init__(self, writer: BlobWriter, recorder: Recorder) -> None:
        self._writer = writer
        self._recorder = recorder

    def write(self, data: bytes | memoryview, /) -> None:
        self._writer.write(data)

    def commit(self, expected: str | None = None) -> tuple[str, int]:
        digest, size = self._writer.commit(expected)
        self._recorder.add(digest)
        return digest, size

    def abort(self) -> None:
        self._writer.abort()

    def __enter__(self) -> "_Writer":
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.abort()


class _StagedWriter(_Writer):
    """The same for a staged blob."""

    def __init__(self, writer: StagedBlobWriter, recorder: Recorder) -> None:
        super().__init__(writer, recorder)
        self.kept, self.chunks, self.checkpoint = writer.kept, writer.chunks, writer.checkpoint

    def __enter__(self) -> "_StagedWriter":
        return self
