"""Blobs under construction that outlive their writer: a later writer of the same name goes on with them.

    blobs/staged-<name>            the bytes so far; locked by their writer while it lives
    blobs/staged-<name>.chunks     the sha256 of every chunk of them, one hex line each; the last may be short

A new writer reads the chunks again and keeps those whose hashes are as written down, so nothing depends on
what reached the disk before a crash. ``Store.sweep`` removes what nobody went on with for two weeks.
"""

import hashlib
import os
import re
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from ftd.hashing import StreamHash
from ftd.registry.blob_writer import BlobWriter

if TYPE_CHECKING:
    from ftd.registry.blobs import BlobStore

STAGED = "staged-"
CHUNKS = ".chunks"
MAX_JOURNAL_BYTES = 64 << 20
_READ_BYTES = 1 << 20
_LINE = re.compile(rb"[0-9a-f]{64}\n")


class StagedWriter(BlobWriter):
    """One blob being written, from byte ``kept`` on; the bytes before are there already.

    Only the end of the process leaves it for a later writer, be it killed or told to end.
    """

    def __init__(self, store: "BlobStore", path: Path, fd: int, chunk_bytes: int) -> None:
        """Take over an open and locked file."""
        super().__init__(store, path, fd)
        self._journal_path = path.with_name(path.name + CHUNKS)
        self.chunks: list[str] = []
        with ExitStack() as taken:
            taken.callback(os.close, fd)
            self.kept = self.size = self._verify(chunk_bytes)
            os.ftruncate(fd, self.kept)
            os.lseek(fd, self.kept, os.SEEK_SET)
            self._journal_path.write_text("".join(f"{chunk}\n" for chunk in self.chunks))
            taken.pop_all()

    def checkpoint(self, chunk: str) -> None:
        """Write down the sha256 (hex) of the next chunk, all of whose bytes were written."""
        with self._journal_path.open("a") as journal:
            journal.write(f"{chunk}\n")

    def abort(self) -> None:
        """Drop what was written, unless the process ends; harmless after ``commit``."""
        if self._store.is_ending and self._fd >= 0:
            super()._close()
        else:
            super().abort()

    def _close(self) -> None:
        self._journal_path.unlink(missing_ok=True)
        super()._close()

    def _verify(self, chunk_bytes: int) -> int:
        """Hash the chunks of an earlier writer up to the first that is not what its journal says.

        Returns the bytes of those before it.
        """
        kept, hash = 0, hashlib.sha256()
        self._hash = StreamHash(hash)
        try:
            with self._journal_path.open("rb") as journal:
                lines = _LINE.findall(journal.read(MAX_JOURNAL_BYTES))
        except FileNotFoundError:
            return kept
        for line in lines:
            whole, chunk, end = hash.copy(), hashlib.sha256(), kept
            while part := os.pread(self._fd, min(_READ_BYTES, kept + chunk_bytes - end), end):
                whole.update(part)
                chunk.update(part)
                end += len(part)
            if chunk.hexdigest().encode() + b"\n" != line or end == kept:
                break
            hash, kept = whole, end
            self._hash = StreamHash(hash)
            self.chunks.append(chunk.hexdigest())
            if kept % chunk_bytes:
                break
        return kept
