"""Staged blobs: what a copy of the folder taken half-way, which is what a kill leaves, is gone on with."""

import hashlib
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ftd.errors import DigestMismatch
from ftd.registry.blobs import BlobStore
from ftd.registry.staging import StagedWriter
from ftd.registry.store import Store

CHUNK_BYTES = 16
DATA = bytes(range(100))


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def stage(store: BlobStore) -> StagedWriter:
    writer = store.stage("k", CHUNK_BYTES)
    assert writer is not None
    return writer


def write(writer: StagedWriter, start: int, end: int) -> None:
    """Write DATA[start:end] and note every chunk that ends in it."""
    writer.write(DATA[start:end])
    for number in range(start // CHUNK_BYTES, end // CHUNK_BYTES):
        writer.checkpoint(sha256(DATA[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES]))


def killed_at(end: int, tmp_path: Path) -> BlobStore:
    """Return a store whose writer was killed after ``end`` bytes."""
    store = BlobStore(tmp_path / "alive")
    with stage(store) as writer:
        write(writer, 0, end)
        shutil.copytree(store.folder, tmp_path / "killed")
    assert list(store.folder.iterdir()) == []
    return BlobStore(tmp_path / "killed")


@pytest.mark.parametrize(("end", "kept"), [(0, 0), (15, 0), (16, 16), (47, 32), (100, 96)])
def test_whole_chunks_are_kept_and_the_blob_is_the_same(end: int, kept: int, tmp_path: Path) -> None:
    store = killed_at(end, tmp_path)
    with stage(store) as writer:
        assert (writer.kept, len(writer.chunks)) == (kept, kept // CHUNK_BYTES)
        write(writer, kept, 100)
        assert writer.commit(f"sha256:{sha256(DATA)}") == (f"sha256:{sha256(DATA)}", 100)
    assert [path.name for path in store.folder.iterdir()] == [f"sha256-{sha256(DATA)}"]
    assert store.read(f"sha256:{sha256(DATA)}") == DATA


def test_the_last_chunk_may_be_short(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "alive")
    with stage(store) as writer:
        write(writer, 0, 100)
        writer.checkpoint(sha256(DATA[96:]))
        shutil.copytree(store.folder, tmp_path / "killed")
    with stage(BlobStore(tmp_path / "killed")) as writer:
        assert (writer.kept, len(writer.chunks)) == (100, 7)
        assert writer.commit()[0] == f"sha256:{sha256(DATA)}"


@pytest.mark.parametrize("place", [0, 20, 40])
def test_what_did_not_reach_the_disk_is_not_kept(place: int, tmp_path: Path) -> None:
    store = killed_at(48, tmp_path)
    with (store.folder / "staged-k").open("r+b") as file:
        file.seek(place)
        file.write(b"\xff")
    with stage(store) as writer:
        assert writer.kept == place // CHUNK_BYTES * CHUNK_BYTES
        assert (store.folder / "staged-k").stat().st_size == writer.kept
        write(writer, writer.kept, 100)
        assert writer.commit()[0] == f"sha256:{sha256(DATA)}"


@pytest.mark.parametrize("journal", [b"", b"\x00" * 65, b"zz\n", (sha256(DATA[:16]) + "\n").encode()[:-1]])
def test_a_journal_that_is_cut_or_noise_keeps_nothing(journal: bytes, tmp_path: Path) -> None:
    store = killed_at(48, tmp_path)
    (store.folder / "staged-k.chunks").write_bytes(journal)
    with stage(store) as writer:
        assert writer.kept == 0


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    with stage(store):
        assert store.stage("k", CHUNK_BYTES) is None
        assert store.stage("other", CHUNK_BYTES) is not None
    assert store.stage("k", CHUNK_BYTES) is not None


def test_another_digest_than_expected_leaves_nothing(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    writer = stage(store)
    writer.write(b"x")
    with pytest.raises(DigestMismatch):
        writer.commit(f"sha256:{sha256(b'y')}")
    assert list(tmp_path.iterdir()) == []
    for call in (lambda: writer.write(b""), writer.commit):
        with pytest.raises(ValueError, match="closed"):
            call()


KILLED = """
import os, signal, sys
from pathlib import Path
from ftd.registry.blobs import BlobStore
writer = BlobStore(Path(sys.argv[1])).stage("k", 16)
writer.write(bytes(range(20)))
writer.checkpoint(sys.argv[2])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_frees_the_lock_and_the_sweep_removes_it_after_two_weeks(tmp_path: Path) -> None:
    store = Store(tmp_path)
    command = [sys.executable, "-c", KILLED, str(store.blobs.folder), sha256(DATA[:16])]
    assert subprocess.run(command, check=False).returncode == -9
    assert store.sweep() == [] and list(store.blobs.digests()) == []
    writer = stage(store.blobs)
    assert writer.kept == 16
    late_s = time.time() + 15 * 24 * 3600
    assert [path.name for path in store.sweep(now_s=late_s)] == ["staged-k.chunks"]  # its writer lives
    writer.abort()
    assert list(store.blobs.folder.iterdir()) == []
