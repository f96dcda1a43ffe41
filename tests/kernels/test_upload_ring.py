"""Bytes through a few buffers to a device, which torch's processor plays; many threads, failing reads."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from ftd.kernels.upload_ring import UploadRing

BUFFER_BYTES = 256
DATA = np.random.default_rng(3).integers(0, 256, 64 * BUFFER_BYTES, np.uint8)


def test_every_piece_reaches_its_place_from_any_thread() -> None:
    ring = UploadRing("cpu", BUFFER_BYTES, 3)
    target = torch.zeros(len(DATA), dtype=torch.uint8)
    in_read, most = 0, 0
    lock = threading.Lock()

    def send(start: int) -> None:
        def read(memory: memoryview) -> None:
            nonlocal in_read, most
            with lock:
                in_read += 1
                most = max(most, in_read)
            assert len(memory) == BUFFER_BYTES
            memory[:] = DATA[start : start + BUFFER_BYTES].tobytes()
            with lock:
                in_read -= 1

        # cut in three, and brought to where they belong in another order
        cuts = ((100, 256), (0, 7), (7, 100))
        pieces = [(first, target[start + first : start + last]) for first, last in cuts]
        ring.send(read, BUFFER_BYTES, pieces)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(send, range(0, len(DATA), BUFFER_BYTES)))
    ring.close()
    assert target.numpy().tobytes() == DATA.tobytes()
    assert most <= 3, "a buffer was read into twice at once"


def test_a_run_may_be_shorter_than_a_buffer_and_lead_nowhere() -> None:
    ring = UploadRing("cpu", BUFFER_BYTES, 1)
    target = torch.full((10,), 9, dtype=torch.uint8)
    lengths: list[int] = []

    def read(memory: memoryview) -> None:
        lengths.append(len(memory))
        memory[:] = bytes(range(len(memory)))

    ring.send(read, 10, [(2, target[:5])])
    ring.send(read, 1, [])
    ring.close()
    assert lengths == [10, 1] and target.tolist() == [2, 3, 4, 5, 6, 9, 9, 9, 9, 9]


def test_a_read_that_fails_gives_its_buffer_back() -> None:
    """Else as many failures as there are buffers would stop all others for ever."""
    ring = UploadRing("cpu", BUFFER_BYTES, 1)
    target = torch.zeros(4, dtype=torch.uint8)

    def fail(memory: memoryview) -> None:
        raise OSError("the disk is gone")

    for _ in range(3):
        with pytest.raises(OSError, match="the disk is gone"):
            ring.send(fail, 4, [(0, target)])
    assert not target.any()
    ring.send(lambda memory: memory.__setitem__(slice(None), b"abcd"), 4, [(0, target)])
    assert bytes(target.tolist()) == b"abcd"
    ring.close()


def test_buffers_begin_where_direct_reads_may() -> None:
    ring = UploadRing("cpu", 4096, 2)
    addresses = []

    def read(memory: memoryview) -> None:
        addresses.append(np.frombuffer(memory, np.uint8).__array_interface__["data"][0])

    for _ in range(4):
        ring.send(read, 4096, [])
    ring.close()
    assert len(set(addresses)) == 2 and all(address % 4096 == 0 for address in addresses)
