"""The file of a download: what the journal says after a restart, and who may hold it."""

import errno
from pathlib import Path

import pytest
from faulty_registry import digest_of, files_in

from ftd.errors import TransferError
from ftd.registry.blobs import BlobStore
from ftd.registry.parts import PartialFile, held_bytes

DATA = b"0123456789"
DIGEST = digest_of(DATA)


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


def journal_path(blobs: BlobStore) -> Path:
    return blobs.folder / f"{DIGEST.replace(':', '-')}-partial.json"


def interrupted(blobs: BlobStore) -> None:
    """Leave a download of which bytes 0-3 and 6-8 are there."""
    partial = PartialFile.open(blobs, DIGEST, 10)
    partial.write(0, [b"01", b"2"])
    partial.write(6, [b"67"])
    partial.ranges.add(0, 3)
    partial.ranges.add(6, 8)
    partial.close(partial.encode_journal())


def test_a_new_download_holds_nothing_and_leaves_nothing(blobs: BlobStore) -> None:
    partial = PartialFile.open(blobs, DIGEST, 10)
    assert list(partial.ranges) == []
    partial.close(partial.encode_journal())
    assert files_in(blobs.folder) == []


def test_what_was_written_is_there_after_a_restart(blobs: BlobStore) -> None:
    interrupted(blobs)
    assert held_bytes(blobs, DIGEST, 10) == 5
    partial = PartialFile.open(blobs, DIGEST, 10)
    buffer = bytearray(3)
    assert list(partial.ranges) == [(0, 3), (6, 8)]
    assert (partial.read_into(memoryview(buffer), 0), bytes(buffer)) == (3, b"012")
    partial.close(partial.encode_journal())


def test_a_finished_download_becomes_the_blob(blobs: BlobStore) -> None:
    interrupted(blobs)
    partial = PartialFile.open(blobs, DIGEST, 10)
    partial.write(3, [b"345"])
    partial.write(8, [b"89"])
    partial.publish()
    partial.close(b"")
    assert blobs.read(DIGEST) == DATA
    assert files_in(blobs.folder) == [DIGEST.replace(":", "-")]


@pytest.mark.parametrize("torn", [b'{"size":10,"ran', b'{"size":10,"ranges":[[0,9]]}', b"\xff\xfe"])
def test_a_line_torn_by_a_kill_does_not_count(blobs: BlobStore, torn: bytes) -> None:
    interrupted(blobs)
    with journal_path(blobs).open("ab") as file:
        file.write(torn)
    assert held_bytes(blobs, DIGEST, 10) == 5
    for _ in range(2):
        partial = PartialFile.open(blobs, DIGEST, 10)
        assert list(partial.ranges) == [(0, 3), (6, 8)]
        partial.close(partial.encode_journal())


def test_lines_that_a_full_disk_cut_cost_what_came_after_the_last_whole_one(blobs: BlobStore) -> None:
    interrupted(blobs)
    line = journal_path(blobs).read_bytes().split(b"\n")[-2]
    with journal_path(blobs).open("ab") as file:
        file.write(line[:12] + line + b"\n" + line[:7] + line + b"\n")
    assert held_bytes(blobs, DIGEST, 10) == 5


def test_a_disk_that_is_full_leaves_no_lock_and_keeps_what_is_there(
    blobs: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(blobs)

    def full(self: PartialFile, journal: bytes) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patched:
        patched.setattr(PartialFile, "save_journal", full)
        with pytest.raises(OSError, match="no space left"):
            PartialFile.open(blobs, DIGEST, 10)
    partial = PartialFile.open(blobs, DIGEST, 10)
    assert list(partial.ranges) == [(0, 3), (6, 8)]
    monkeypatch.setattr(PartialFile, "save_journal", full)
    partial.close(partial.encode_journal())
    assert held_bytes(blobs, DIGEST, 10) == 5


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"[]",
        b'{"size":11,"ranges":[[0,3]]}',
        b'{"size":10,"ranges":[[0,11]]}',
        b'{"size":10,"ranges":[[3,3]]}',
        b'{"size":10,"ranges":[[-1,3]]}',
        b'{"size":10,"ranges":[[5,3]]}',
    ],
)
def test_a_journal_that_cannot_be_true_counts_as_none(blobs: BlobStore, line: bytes) -> None:
    interrupted(blobs)
    journal_path(blobs).write_bytes(line + b"\n")
    assert held_bytes(blobs, DIGEST, 10) == 0


def test_a_journal_for_another_size_counts_as_none(blobs: BlobStore) -> None:
    interrupted(blobs)
    partial = PartialFile.open(blobs, DIGEST, 12)
    assert list(partial.ranges) == []
    partial.close(partial.encode_journal())


def test_a_file_without_its_bytes_counts_as_none(blobs: BlobStore) -> None:
    interrupted(blobs)
    blobs.path(DIGEST).with_name(DIGEST.replace(":", "-") + "-partial").write_bytes(b"")
    assert held_bytes(blobs, DIGEST, 10) == 0


def test_two_cannot_work_on_one_file(blobs: BlobStore) -> None:
    partial = PartialFile.open(blobs, DIGEST, 10)
    with pytest.raises(TransferError, match="another process is downloading"):
        PartialFile.open(blobs, DIGEST, 10)
    partial.close(partial.encode_journal())


def test_forgotten_bytes_are_missing_again(blobs: BlobStore) -> None:
    interrupted(blobs)
    partial = PartialFile.open(blobs, DIGEST, 10)
    partial.forget(0, 3)
    partial.close(partial.encode_journal())
    assert held_bytes(blobs, DIGEST, 10) == 2


def test_many_pieces_are_written_as_one_run(blobs: BlobStore) -> None:
    data = bytes(range(256)) * 8
    partial = PartialFile.open(blobs, digest_of(data), len(data))
    partial.write(0, [data[index : index + 1] for index in range(len(data))])
    partial.publish()
    partial.close(b"")
    assert blobs.read(digest_of(data)) == data
