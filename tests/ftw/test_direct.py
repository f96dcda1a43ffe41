"""Direct reads against the bytes of the file, with calls that read less than they were asked for, or fail."""

import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftd.errors import DamagedBlob
from ftd.ftw.direct import BLOCK_BYTES, open_direct, read_run

DATA = os.urandom(6 * BLOCK_BYTES)
preadv = os.preadv


def memory(num_bytes: int) -> memoryview:
    """Return memory at the beginning of a page, as direct reads want it."""
    return memoryview(mmap.mmap(-1, num_bytes))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of DATA."""
    path = tmp_path_factory.mktemp("direct") / "blob"
    path.write_bytes(DATA)
    return path


@pytest.fixture(scope="module")
def descriptor(path: Path) -> Iterator[int]:
    """It, opened."""
    descriptor = open_direct(path, memory(BLOCK_BYTES))
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize(("first", "count"), [(0, 6), (0, 1), (2, 3), (5, 1)])
def test_runs_are_the_bytes_of_the_file(descriptor: int, first: int, count: int) -> None:
    target = memory(count * BLOCK_BYTES)
    read_run(descriptor, target, first * BLOCK_BYTES, "b")
    assert bytes(target) == DATA[first * BLOCK_BYTES : (first + count) * BLOCK_BYTES]


@given(st.lists(st.integers(1, len(DATA)), min_size=1, max_size=6))
def test_short_reads_are_gone_on_with_at_a_block(descriptor: int, path: Path, sizes: list[int]) -> None:
    """Any count may come back: a signal, or a file system that reads in pieces."""
    counts = iter([*sizes, *[len(DATA)] * 100])
    starts: list[int] = []

    def short(file: int, buffers: list[memoryview], start: int) -> int:
        starts.append(start)
        # Progress is made by at least a block, as every file system does that takes direct reads
        size = max(next(counts), BLOCK_BYTES)
        return preadv(file, [buffers[0][:size]], start)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "preadv", short)
        plain = os.open(path, os.O_RDONLY)
        target = memory(len(DATA))
        read_run(plain, target, 0, "b")
        os.close(plain)
    assert bytes(target) == DATA
    assert all(start % BLOCK_BYTES == 0 for start in starts) and starts == sorted(starts)


@pytest.mark.parametrize("is_direct", [True, False])
@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 904, 2 * BLOCK_BYTES - 1])
def test_a_file_that_ends_early_is_damaged(tmp_path: Path, size: int, is_direct: bool) -> None:
    """Whether it ends within a block or not: what comes back again and again is not waited for."""
    path = tmp_path / "blob"
    path.write_bytes(DATA[:size])
    target = memory(2 * BLOCK_BYTES)
    descriptor = open_direct(path, memory(BLOCK_BYTES)) if is_direct else os.open(path, os.O_RDONLY)
    with pytest.raises(DamagedBlob) as caught:
        read_run(descriptor, target, 0, "sha256:abc")
    os.close(descriptor)
    assert caught.value.message == f"sha256:abc ends at byte {size}: it is shorter than its config says"


def test_where_a_run_behind_the_end_was_meant_to_begin(descriptor: int) -> None:
    with pytest.raises(DamagedBlob, match=f"b ends at byte {len(DATA) + BLOCK_BYTES}"):
        read_run(descriptor, memory(BLOCK_BYTES), len(DATA) + BLOCK_BYTES, "b")


def test_a_read_that_fails_names_the_place(descriptor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: int, buffers: list[memoryview], start: int) -> int:
        if start >= 2 * BLOCK_BYTES:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return preadv(file, [buffers[0][:BLOCK_BYTES]], start)

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(DamagedBlob, match=f"cannot read b at byte {2 * BLOCK_BYTES}: Input/output error"):
        read_run(descriptor, memory(len(DATA)), 0, "b")


def refuse_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that has no direct reads says so when a file is opened (tmpfs of old), ..."""
    opened = os.open

    def refuse(path: Any, flags: int, *mode: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return opened(path, flags, *mode)

    monkeypatch.setattr(os, "open", refuse)


def refuse_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """... or when it is read (some network file systems)."""

    def refuse(file: int, buffers: list[memoryview], start: int) -> int:
        if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return preadv(file, buffers, start)

    monkeypatch.setattr(os, "preadv", refuse)


@pytest.mark.parametrize("refuse", [refuse_open, refuse_read])
def test_where_direct_reads_are_refused_the_cache_serves(
    path: Path,
    refuse: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    refuse(monkeypatch)
    before = len(os.listdir("/proc/self/fd"))
    descriptor = open_direct(path, memory(BLOCK_BYTES))
    assert len(os.listdir("/proc/self/fd")) == before + 1
    target = memory(len(DATA))
    read_run(descriptor, target, 0, "b")
    os.close(descriptor)
    assert bytes(target) == DATA
    assert "direct reads refused file=blob reason='Invalid argument'" in caplog.text


def test_a_file_that_is_not_there_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_direct(tmp_path / "gone", memory(BLOCK_BYTES))
