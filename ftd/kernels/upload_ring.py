"""Bytes from files to a device through a few locked buffers: while one is read into, others are copied.

reader threads ──direct read──▶ buffer ──copy stream──▶ device      a buffer is free when its copy has ended
"""

import mmap
import queue
from collections.abc import Callable, Sequence

import numpy as np
import torch

from ftd.kernels.host_lock import HostLocks

BUFFER_BYTES = 4 << 20
# Twice the threads that read: as many are copied
NUM_BUFFERS = 16
Pieces = Sequence[tuple[int, torch.Tensor]]


class UploadRing:
    """Owns the buffers and the copy stream. ``send`` may be called from any thread."""

    def __init__(self, device: str, buffer_bytes: int = BUFFER_BYTES, num_buffers: int = NUM_BUFFERS) -> None:
        self.buffer_bytes = buffer_bytes
        self._is_card = device != "cpu"
        area = mmap.mmap(-1, buffer_bytes * num_buffers, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._memory = torch.from_numpy(np.frombuffer(area, np.uint8))
        self._locks = HostLocks()
        if self._is_card:
            # Copies from memory that is not locked are slower, and right
            self._locks.add(self._memory)
        self._stream = torch.cuda.Stream() if self._is_card else None
        self._free: queue.Queue[tuple[torch.Tensor, torch.cuda.Event | None]] = queue.Queue()
        for buffer in torch.split(self._memory, buffer_bytes):
            self._free.put((buffer, None))

    def send(self, read: Callable[[memoryview], None], num_bytes: int, pieces: Pieces) -> None:
        """Let ``read`` fill ``num_bytes`` of a buffer and begin to copy its pieces to where they belong.

        pieces: where each begins in the buffer, and its target [N] u8.
        """
        buffer, copied = self._free.get()
        try:
            if copied is not None:
                copied.synchronize()
            read(buffer[:num_bytes].numpy().data)
            copied = self._copy(buffer, pieces)
        finally:
            self._free.put((buffer, copied))

    def close(self) -> None:
        """Wait for all copies and free the buffers; nobody is in ``send``."""
        if self._stream is not None:
            self._stream.synchronize()
        self._locks.close()

    def _copy(self, buffer: torch.Tensor, pieces: Pieces) -> "torch.cuda.Event | None":
        if self._stream is None:
            for start, target in pieces:
                target.copy_(buffer[start : start + len(target)])
            return None
        with torch.cuda.stream(self._stream):
            for start, target in pieces:
                target.copy_(buffer[start : start + len(target)], non_blocking=True)
            event: torch.cuda.Event = self._stream.record_event()
            return event
