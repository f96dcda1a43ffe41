"""ftd.hashing against hashlib on the same bytes, and when writing fails."""

import hashlib

import pytest

from ftd.hashing import PARALLEL_BYTES, StreamHash


@pytest.mark.parametrize("sizes", [[], [1, 2, 3], [PARALLEL_BYTES], [5, 3 * PARALLEL_BYTES + 7, 1]])
def test_the_hash_is_that_of_what_was_written(sizes: list[int]) -> None:
    stream, written = StreamHash(), bytearray()
    for size in sizes:
        stream.update(memoryview(bytes([size % 251]) * size), written.extend)
    assert len(written) == sum(sizes)
    assert stream.hexdigest() == hashlib.sha256(written).hexdigest()
    stream.close()
    stream.close()


def test_it_goes_on_after_another_hash() -> None:
    stream = StreamHash(hashlib.sha256(b"be"))
    stream.update(memoryview(b"gin"), len)
    assert stream.hexdigest() == hashlib.sha256(b"begin").hexdigest()


def test_a_failed_write_is_raised_after_hashing() -> None:
    def fail(data: memoryview) -> None:
        raise OSError("full")

    stream = StreamHash()
    with pytest.raises(OSError, match="full"):
        stream.update(memoryview(bytes(PARALLEL_BYTES)), fail)
    stream.close()
