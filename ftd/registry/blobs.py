"""Blobs: content-addressed files, each visible under its digest only after the digest was verified.

    blobs/sha256-<64 hex>                 a blob; its bytes hash to its name
    blobs/sha256-<64 hex>-partial         a download under construction (ftd.registry.parts)
    blobs/sha256-<64 hex>-partial.json    which bytes of it are there
    blobs/writing-<random>                a blob being written; locked by its writer while it lives
    blobs/upload-<32 hex>                 an upload session of the registry server
    blobs/staged-<name>                   a blob that a later writer can go on with (ftd.registry.staging)

A new blob is written to a temporary file, hashed on the way, synced, renamed, and its folder synced. A kill
at any moment leaves a temporary file without a lock, which ``Store.sweep`` removes.
"""

import contextlib
import fcntl
import hashlib
import io
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

from ftd.errors import BlobNotFound, CorruptData, DamagedBlob
from ftd.names import parse_digest
from ftd.registry.blob_writer import BlobWriter
from ftd.registry.staging import STAGED, StagedWriter

WRITING = "writing-"
UPLOAD = "upload-"
PARTIAL = "-partial"
MAX_READ_BYTES = 64 * 2**20  # of a blob that is read whole
_BLOB_FILE = re.compile(r"sha256-[0-9a-f]{64}", re.ASCII)


def sync_folder(folder: Path) -> None:
    """Make renames and removals inside ``folder`` durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def lock_or_close(fd: int) -> bool:
    """Take the exclusive lock of an open file without waiting; close it and say False if another has it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return False
    return True


def open_locked(path: Path) -> int | None:
    """Open or create a file that a later writer may go on with, and lock it; None if another has the lock."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        if not lock_or_close(fd):
            return None
        # Between open and lock its writer may have published it, or a sweep removed it
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(fd), path.stat()):
                return fd
        os.close(fd)


def _create_locked(folder: Path) -> tuple[Path, int]:
    # A sweep of another process may see the new file before its lock: then it is gone, and the next try wins.
    while True:
        path = folder / f"{WRITING}{secrets.token_hex(16)}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        if lock_or_close(fd):
            if path.exists():
                return path, fd
            os.close(fd)


class BlobStore:
    """The folder of blobs. Any thread may call it; blobs are immutable once visible.

    ``is_ending``: the process is about to end. What is under construction is kept from then on.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.is_ending = False
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, digest: str) -> Path:
        """Return where a blob of this digest lies, whether or not it is there; raise InvalidDigest."""
        return self.folder / parse_digest(digest).replace(":", "-", 1)

    def has(self, digest: str) -> bool:
        """Say whether the blob is there."""
        return self.path(digest).is_file()

    def size(self, digest: str) -> int:
        """Return the length in bytes of a stored blob; raise BlobNotFound."""
        try:
            return self.path(digest).stat().st_size
        except FileNotFoundError:
            raise BlobNotFound(f"blob not found: {digest}") from None

    def new(self) -> BlobWriter:
        """Start a blob whose digest is not known yet."""
        return BlobWriter(self, *_create_locked(self.folder))

    def stage(self, name: str, chunk_bytes: int) -> StagedWriter | None:
        """Go on with the blob staged under ``name``, or start it; None if another writer is at it."""
        path = self.folder / f"{STAGED}{name}"
        fd = open_locked(path)
        return None if fd is None else StagedWriter(self, path, fd, chunk_bytes)

    def sync(self) -> None:
        """Make renames and removals of blobs durable."""
        sync_folder(self.folder)

    def put(self, data: bytes | bytearray | memoryview, expected: str | None = None) -> tuple[str, int]:
        """Store bytes held in memory; return digest and size."""
        with self.new() as writer:
            writer.write(data)
            return writer.commit(expected)

    def open(self, digest: str) -> io.BufferedReader:
        """Open a stored blob for reading; raise BlobNotFound."""
        try:
            return self.path(digest).open("rb")
        except FileNotFoundError:
            raise BlobNotFound(f"blob not found: {digest}") from None

    def read(self, digest: str, max_bytes: int = MAX_READ_BYTES) -> bytes:
        """Return a small blob, verified; raise BlobNotFound, DamagedBlob, or CorruptData if too long."""
        with self.open(digest) as file:
            data = file.read(max_bytes + 1)
        if len(data) > max_bytes:
            raise CorruptData(f"blob {digest} is longer than {max_bytes} bytes: {self.size(digest)}")
        if f"sha256:{hashlib.sha256(data).hexdigest()}" != digest:
            raise DamagedBlob(f"blob on disk does not have its digest: {digest}", "pull the model again")
        return data

    def verify(self, digest: str) -> bool:
        """Read a whole stored blob and say whether it still hashes to its name."""
        with self.open(digest) as file:
            return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}" == digest

    def touch(self, digest: str) -> None:
        """Make a blob count as new for the sweep, which spares young blobs; no error if it is gone."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(self.path(digest))

    def remove(self, digest: str) -> bool:
        """Delete a blob; say whether it was there."""
        try:
            self.path(digest).unlink()
        except FileNotFoundError:
            return False
        return True

    def digests(self) -> Iterator[str]:
        """Iterate over the digests of all stored blobs."""
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if _BLOB_FILE.fullmatch(entry.name):
                    yield entry.name.replace("-", ":", 1)
