"""Blobs: nothing is visible before its digest was verified, whatever ends the writer."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from faulty_registry import digest_of, files_in

from ftd.errors import BlobNotFound, CorruptData, DamagedBlob, DigestMismatch, InvalidDigest
from ftd.registry.blobs import BlobStore
from ftd.registry.store import Store

HELLO = "sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


def test_a_blob_is_named_by_its_sha256(blobs: BlobStore) -> None:
    assert blobs.put(b"hello") == (HELLO, 5)
    assert files_in(blobs.folder) == [HELLO.replace(":", "-")]
    assert (blobs.has(HELLO), blobs.size(HELLO), blobs.read(HELLO)) == (True, 5, b"hello")
    assert oct(blobs.path(HELLO).stat().st_mode)[-3:] == "644"


def test_pieces_of_any_kind_are_written_in_order(blobs: BlobStore) -> None:
    with blobs.new() as writer:
        for piece in (b"he", bytearray(b"l"), memoryview(b"xlox")[1:3], b""):
            writer.write(piece)
        assert writer.commit(HELLO) == (HELLO, 5)


def test_a_blob_is_invisible_before_commit(blobs: BlobStore) -> None:
    with blobs.new() as writer:
        writer.write(b"hello")
        assert not blobs.has(HELLO)
        assert list(blobs.digests()) == []


def test_a_wrong_digest_leaves_nothing(blobs: BlobStore) -> None:
    with pytest.raises(DigestMismatch, match="digest mismatch, expected"):
        blobs.put(b"hello", digest_of(b"other"))
    assert files_in(blobs.folder) == []


def test_an_exception_leaves_nothing(blobs: BlobStore) -> None:
    with pytest.raises(RuntimeError), blobs.new() as writer:
        writer.write(b"hello")
        raise RuntimeError
    assert files_in(blobs.folder) == []


def test_a_writer_is_closed_by_commit_and_by_abort(blobs: BlobStore) -> None:
    writer = blobs.new()
    writer.commit()
    writer.abort()
    for call in (writer.commit, lambda: writer.write(b"x")):
        with pytest.raises(ValueError, match="closed"):
            call()


def test_a_blob_written_again_counts_as_new_and_heals_damage(blobs: BlobStore) -> None:
    blobs.put(b"hello")
    blobs.path(HELLO).write_bytes(b"jello")
    os.utime(blobs.path(HELLO), (1, 1))
    assert not blobs.verify(HELLO)
    blobs.put(b"hello")
    assert blobs.verify(HELLO)
    assert blobs.path(HELLO).stat().st_mtime > 1


def test_reading_checks_the_digest_and_the_length(blobs: BlobStore) -> None:
    blobs.put(b"hello")
    with pytest.raises(CorruptData, match="longer than 4 bytes"):
        blobs.read(HELLO, max_bytes=4)
    blobs.path(HELLO).write_bytes(b"jello")
    with pytest.raises(DamagedBlob):
        blobs.read(HELLO)


def test_a_missing_blob_is_not_found(blobs: BlobStore) -> None:
    for call in (blobs.size, blobs.open, blobs.read, blobs.verify):
        with pytest.raises(BlobNotFound, match="blob not found"):
            call(HELLO)
    assert not blobs.has(HELLO)
    assert not blobs.remove(HELLO)
    blobs.touch(HELLO)


@pytest.mark.parametrize("digest", ["sha256:../../x", "../x", HELLO.upper(), HELLO.replace(":", "-"), ""])
def test_no_path_is_made_from_a_bad_digest(blobs: BlobStore, digest: str) -> None:
    for call in (blobs.path, blobs.has, blobs.size, blobs.open, blobs.read, blobs.remove, blobs.touch):
        with pytest.raises(InvalidDigest):
            call(digest)


KILLED_WRITER = """
import os, signal, sys
from pathlib import Path
from ftd.registry import blobs
from ftd.registry.blobs import BlobStore
step = sys.argv[2]
def die(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)
writer = BlobStore(Path(sys.argv[1])).new()
writer.write(b"hel")
if step == "write":
    die()
writer.write(b"lo")
if step in ("fsync", "rename"):
    setattr(os, step, die)
if step == "folder":
    blobs.sync_folder = die
writer.commit()
"""


@pytest.mark.parametrize(("step", "visible"), [("write", 0), ("fsync", 0), ("rename", 0), ("folder", 1)])
def test_a_kill_at_any_step_leaves_no_wrong_blob_and_the_sweep_cleans(
    tmp_path: Path, step: str, visible: int
) -> None:
    store = Store(tmp_path)
    command = [sys.executable, "-c", KILLED_WRITER, str(store.blobs.folder), step]
    assert subprocess.run(command, check=False).returncode == -9
    digests = list(store.blobs.digests())
    assert len(digests) == visible
    for digest in digests:
        data = store.blobs.path(digest).read_bytes()
        assert f"sha256:{hashlib.sha256(data).hexdigest()}" == digest
    store.sweep()
    assert files_in(store.blobs.folder) == [digest.replace(":", "-") for digest in digests]
