"""Upload sessions of the registry server: files that grow until their digest is verified.

    POST ──▶ open, offset 0 ──append at offset──▶ open, offset n ──commit digest──▶ blob
                                 └ any other offset: UploadOutOfOrder, unchanged
                                 └ cancel ──▶ gone

A session is one file, ``blobs/upload-<32 hex>``; its length is its offset, so sessions outlive a restart.
Only the hash of what was received is kept in memory, and it is computed again from the file when it is not
there.
"""

import fcntl
import hashlib
import os
import re
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ftd.errors import Busy, DigestMismatch, UploadNotFound, UploadOutOfOrder
from ftd.names import parse_digest
from ftd.registry.blobs import UPLOAD, BlobStore, sync_folder

_UPLOAD_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
_READ_BYTES = 2**20


class Uploads:
    """All sessions of one blob store. Any thread may call it; one caller at a time works on a session."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._hashes: dict[str, tuple[Any, int]] = {}
        self._busy: set[str] = set()
        self._busy_lock = threading.Lock()

    def start(self) -> str:
        """Open a session and return its id."""
        upload_id = secrets.token_hex(16)
        os.close(os.open(self._path(upload_id), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
        self._hashes[upload_id] = (hashlib.sha256(), 0)
        return upload_id

    def offset(self, upload_id: str) -> int:
        """Return how many bytes a session holds; raise UploadNotFound."""
        try:
            return self._path(upload_id).stat().st_size
        except FileNotFoundError:
            raise UploadNotFound(f"upload not found: {upload_id}") from None

    @contextmanager
    def claim(self, upload_id: str) -> Iterator["UploadSession"]:
        """Work on a session alone; raise UploadNotFound, or Busy while someone else does."""
        path = self._path(upload_id)
        with self._busy_lock:
            if upload_id in self._busy:
                raise Busy(f"upload is in use by another request: {upload_id}", "try again")
            self._busy.add(upload_id)
        try:
            try:
                fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                raise UploadNotFound(f"upload not found: {upload_id}") from None
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                sha, num_hashed = self._hashes.get(upload_id, (hashlib.sha256(), 0))
                session = UploadSession(self._blobs, path, fd, sha, num_hashed)
                try:
                    yield session
                finally:
                    self._hashes[upload_id] = (session.sha, session.num_hashed)
                    if session.is_closed:
                        del self._hashes[upload_id]
            finally:
                os.close(fd)
        finally:
            with self._busy_lock:
                self._busy.discard(upload_id)

    def cancel(self, upload_id: str) -> None:
        """Drop a session and its bytes; raise UploadNotFound."""
        with self.claim(upload_id) as session:
            session.drop()

    def _path(self, upload_id: str) -> Path:
        if not _UPLOAD_ID.fullmatch(upload_id):
            raise UploadNotFound(f"upload not found: {upload_id!r:.60}")
        return self._blobs.folder / f"{UPLOAD}{upload_id}"


class UploadSession:
    """A claimed session. ``offset`` is the truth; ``num_hashed`` bytes of it are in ``sha``."""

    def __init__(self, blobs: BlobStore, path: Path, fd: int, sha: Any, num_hashed: int) -> None:
        self._blobs = blobs
        self._path = path
        self._fd = fd
        self.sha = sha
        self.num_hashed = num_hashed
        self.offset = os.fstat(fd).st_size
        self.is_closed = False

    def check_start(self, start: int | None) -> None:
        """Raise UploadOutOfOrder unless a part that starts at ``start`` (None: wherever) fits the end."""
        if start is not None and start != self.offset:
            raise UploadOutOfOrder(
                f"upload is at offset {self.offset}, the part starts at {start}", None, self.offset
            )

    def append(self, data: bytes | bytearray | memoryview) -> None:
        """Add bytes at the end; a disk that does not take them ends the session, to give back its room."""
        self._catch_up()
        view = memoryview(data).cast("B")
        while view:
            try:
                written = os.pwrite(self._fd, view, self.offset)
            except OSError:
                self.drop()
                raise
            self.sha.update(view[:written])
            self.offset += written
            self.num_hashed = self.offset
            view = view[written:]

    def commit(self, digest: str) -> None:
        """Verify and publish the blob; raise DigestMismatch, and drop the session, if the digest is wrong."""
        parse_digest(digest)
        self._catch_up()
        found = f"sha256:{self.sha.hexdigest()}"
        if found != digest:
            self.drop()
            raise DigestMismatch(f'digest mismatch, expected "{digest}", got "{found}"')
        os.fsync(self._fd)
        os.utime(self._fd)
        os.rename(self._path, self._blobs.path(digest))
        self.is_closed = True
        sync_folder(self._blobs.folder)

    def drop(self) -> None:
        """Remove the session."""
        self._path.unlink(missing_ok=True)
        self.is_closed = True

    def _catch_up(self) -> None:
        """Hash what is in the file but not yet in ``sha``: what came before a restart."""
        while self.num_hashed < self.offset:
            data = os.pread(self._fd, min(_READ_BYTES, self.offset - self.num_hashed), self.num_hashed)
            self.sha.update(data)
            self.num_hashed += len(data)
