"""The engine's end of the socket to the daemon: a thread that reads, a queue, and buffered writing.

The step loop never waits for the socket while there is work: ``poll`` takes what has arrived, ``wait`` blocks
only when the engine is idle. Only the thread of the step loop may call ``send``, ``flush``, ``poll`` and
``wait``.
"""

import contextlib
import queue
import socket
import threading

from ftd.engine import messages
from ftd.engine.messages import HEADER, MAX_FRAME_BYTES, Down, Up
from ftd.errors import EngineError

READ_BYTES = 1 << 16


class Disconnected(EngineError):
    """The daemon closed its end."""


class Channel:
    """Frames over one connected stream socket; owns the socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sock.setblocking(True)
        self._queue: queue.SimpleQueue[Down | EngineError] = queue.SimpleQueue()
        self._frames: list[bytes] = []
        self.is_closed = False
        self._thread = threading.Thread(target=self._read, name="ftd-channel", daemon=True)
        self._thread.start()

    def poll(self) -> Down | None:
        """Return the next message, or None if none has arrived; EngineError when there will be no more."""
        try:
            return self._take(self._queue.get_nowait())
        except queue.Empty:
            return None

    def wait(self) -> Down:
        """Return the next message, waiting for it; EngineError when there will be no more."""
        return self._take(self._queue.get())

    def send(self, message: Up) -> None:
        """Add ``message`` to what the next ``flush`` writes."""
        self._frames.append(messages.encode(message))

    def flush(self) -> None:
        """Write all messages sent since the last flush; Disconnected when the daemon is gone."""
        if not self._frames:
            return
        data = b"".join(self._frames)
        self._frames.clear()
        try:
            self._sock.sendall(data)
        except OSError as exc:
            raise Disconnected(f"the daemon closed the socket: {exc.strerror}") from exc

    def close(self) -> None:
        """Close the socket and end the reading thread."""
        self.is_closed = True
        with contextlib.suppress(OSError):  # the other end is gone already
            self._sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._sock.close()

    def _take(self, item: Down | EngineError) -> Down:
        if isinstance(item, EngineError):
            self._queue.put(item)  # every later call meets the end again
            raise item
        return item

    def _read(self) -> None:
        """Cut the stream into frames until it ends; runs in its own thread."""
        pending = bytearray()
        end = Disconnected("the daemon closed the socket")
        try:
            while data := self._sock.recv(READ_BYTES):
                pending += data
                self._cut(pending)
        except OSError:
            pass  # a reset connection has ended too
        except EngineError as exc:
            self._queue.put(exc)
            return
        self.is_closed = True
        self._queue.put(end)

    def _cut(self, pending: bytearray) -> None:
        """Put every whole frame of ``pending`` into the queue and leave the rest."""
        while len(pending) >= HEADER.size:
            (size,) = HEADER.unpack_from(pending)
            if size > MAX_FRAME_BYTES:
                raise EngineError(f"frame from the daemon exceeds {MAX_FRAME_BYTES} bytes: {size}")
            if len(pending) < HEADER.size + size:
                return
            body = bytes(memoryview(pending)[HEADER.size : HEADER.size + size])
            del pending[: HEADER.size + size]
            try:
                self._queue.put(messages.decode_down(body))
            except ValueError as exc:
                raise EngineError(f"frame from the daemon does not decode: {exc}") from exc
