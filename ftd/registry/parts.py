"""A download under construction: a sparse file, and a journal of which of its bytes are there.

    sha256-<hex>-partial          full length from the start; holes where bytes are missing
    sha256-<hex>-partial.json     lines {"size":N,"ranges":[[start,end],…]}; the last whole one counts

The journal is appended to, only after the bytes it speaks of were written: after a kill, or on a full disk,
it is behind the file, never ahead. (Not renamed into place: on ext4 that waits for the disk, and meanwhile
the journal falls behind.) After a power failure it may be ahead; then the digest fails and what differs is
fetched again. The file is locked while a process works on it.
"""

import contextlib
import os
from pathlib import Path
from typing import Self

import msgspec

from ftd.errors import TransferError
from ftd.registry.blobs import PARTIAL, BlobStore, open_locked, sync_folder
from ftd.registry.ranges import RangeSet


class _Journal(msgspec.Struct):
    size: int
    ranges: list[tuple[int, int]]


def _paths(blobs: BlobStore, digest: str) -> tuple[Path, Path]:
    data = blobs.path(digest)
    data = data.with_name(data.name + PARTIAL)
    return data, data.with_name(data.name + ".json")


def _read_journal(data: Path, journal: Path, size: int) -> RangeSet:
    """Return what the journal says is there; nothing if it does not fit the file."""
    try:
        lines, stored = journal.read_bytes().split(b"\n")[:-1], data.stat().st_size
    except FileNotFoundError:
        return RangeSet()
    found = next(filter(None, map(_parsed, reversed(lines))), None)
    if found is None or not found.size == stored == size:
        return RangeSet()
    ordered = all(0 <= start < end <= size for start, end in found.ranges)
    return RangeSet(found.ranges if ordered else ())


def _parsed(line: bytes) -> _Journal | None:
    """Return what a line says; None for one that a full disk cut short, and whatever was appended to it."""
    try:
        return msgspec.json.decode(line, type=_Journal)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def held_bytes(blobs: BlobStore, digest: str, size: int) -> int:
    """Return how many bytes of an unfinished download are already on disk."""
    return _read_journal(*_paths(blobs, digest), size).num_bytes


class PartialFile:
    """The file of one download. ``ranges`` may be changed by its owner's thread only.

    Bytes that are in ``ranges`` are never written again unless ``forget`` was called first: whoever hashes
    them may rely on that.
    """

    def __init__(self, blobs: BlobStore, digest: str, size: int, fd: int) -> None:
        self._blobs = blobs
        self.digest = digest
        self.size = size
        self._data, self._journal = _paths(blobs, digest)
        self._fd = fd
        self._is_published = False
        with contextlib.ExitStack() as taken:  # a full disk must not leave the lock behind
            taken.callback(os.close, fd)
            self.ranges = _read_journal(self._data, self._journal, size)
            os.ftruncate(fd, size)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._journal_fd = os.open(self._journal, flags, 0o644)
            taken.callback(os.close, self._journal_fd)
            # A kill may have left half a line: end it, so that the next one starts at its own beginning.
            self.save_journal(b"\n" + self.encode_journal())
            taken.pop_all()

    @classmethod
    def open(cls, blobs: BlobStore, digest: str, size: int) -> Self:
        """Open or create the file; raise TransferError if another process works on it."""
        path, _ = _paths(blobs, digest)
        fd = open_locked(path)
        if fd is None:
            raise TransferError(f"another process is downloading this blob: {digest}", "wait for it")
        return cls(blobs, digest, size, fd)

    def write(self, offset: int, pieces: list[bytes]) -> None:
        """Write pieces one after the other from ``offset`` on; does not touch ``ranges``; any thread."""
        while pieces:
            written = os.pwritev(self._fd, pieces[:512], offset)
            offset += written
            while pieces and written >= len(pieces[0]):
                written -= len(pieces.pop(0))
            if written:
                pieces[0] = pieces[0][written:]

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fill ``buffer`` from ``offset`` on and return how many bytes were read; any thread."""
        return os.preadv(self._fd, [buffer], offset)

    def sync(self) -> None:
        """Write what is in memory to the disk; any thread."""
        os.fdatasync(self._fd)

    def forget(self, start: int, end: int) -> None:
        """Take bytes out of ``ranges`` because they are wrong."""
        self.ranges.remove(start, end)

    def encode_journal(self) -> bytes:
        """Return the journal as it should be on disk now; call on the owner's thread."""
        return msgspec.json.encode(_Journal(self.size, list(self.ranges))) + b"\n"

    def save_journal(self, journal: bytes) -> None:
        """Append to the journal; any thread, in the order of encoding."""
        os.write(self._journal_fd, journal)

    def publish(self) -> None:
        """Make the file, whose digest the caller has verified, the blob of its name."""
        os.fsync(self._fd)
        os.rename(self._data, self._blobs.path(self.digest))
        self._is_published = True
        self._journal.unlink(missing_ok=True)
        sync_folder(self._blobs.folder)

    def close(self, journal: bytes) -> None:
        """Save the journal unless the file was published, remove what holds nothing, give up the lock."""
        try:
            if self._is_published:
                return
            if self.ranges.num_bytes:
                with contextlib.suppress(OSError):  # a full disk, which whoever wrote the bytes tells of
                    self.save_journal(journal)
            else:
                self._journal.unlink(missing_ok=True)
                self._data.unlink(missing_ok=True)
        finally:
            os.close(self._journal_fd)
            os.close(self._fd)
