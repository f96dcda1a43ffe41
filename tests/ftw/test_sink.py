"""ftd.ftw.sink: a blob is there after commit, under its digest, and nothing is there before or instead."""

import hashlib

import pytest

from ftd.errors import DigestMismatch
from ftd.ftw.sink import DirectorySink

DIGEST = f"sha256:{hashlib.sha256(b'two parts').hexdigest()}"


def test_commit_names_the_blob_by_its_bytes(sink: DirectorySink) -> None:
    with sink.new() as blob:
        blob.write(b"two ")
        blob.write(memoryview(b"parts"))
        assert not sink.path(DIGEST).exists()
        assert blob.commit(DIGEST) == (DIGEST, 9)
    assert sink.path(DIGEST).read_bytes() == b"two parts"
    assert len(list(sink.directory.iterdir())) == 1


def test_another_digest_leaves_nothing(sink: DirectorySink) -> None:
    with sink.new() as blob, pytest.raises(DigestMismatch, match=DIGEST):
        blob.write(b"one part")
        blob.commit(DIGEST)
    assert list(sink.directory.iterdir()) == []


def test_leaving_without_commit_leaves_nothing(sink: DirectorySink) -> None:
    with sink.new() as blob:
        blob.write(b"x")
    assert list(sink.directory.iterdir()) == []
