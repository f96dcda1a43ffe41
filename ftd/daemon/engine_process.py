"""A started engine process on an event loop: its exit status, signals, the lines of its log."""

import asyncio
import os
import signal
from contextlib import suppress

from ftd.daemon.spawn import Spawned

_LOG_LINE_BYTES = 64 << 10
# of a process that somebody else has waited for
_UNKNOWN_STATUS = 255


class EngineProcess:
    """Owns what ``spawn`` returned but the socket. Made and used on one event loop; ``close`` at the end."""

    def __init__(self, spawned: Spawned) -> None:
        self.pid = spawned.pid
        self.returncode: int | None = None
        self._exited = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._pidfd = os.pidfd_open(spawned.pid)
        self._loop.add_reader(self._pidfd, self._reap)
        self._log = asyncio.StreamReader(limit=_LOG_LINE_BYTES)
        self._log_file = os.fdopen(spawned.log, "rb", buffering=0)
        self._log_transport: asyncio.ReadTransport | None = None

    async def open(self) -> None:
        """Begin to read the log."""
        self._log_transport, _ = await self._loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self._log), self._log_file
        )

    async def log_line(self) -> str | None:
        """Return the next line of the log, of a line that is too long nothing; None at its end."""
        try:
            line = await self._log.readline()
        except ValueError:  # the reader dropped what it had
            return ""
        return line.decode("utf-8", "replace").rstrip() if line else None

    async def wait(self) -> None:
        """Return when the process has ended; ``returncode`` is there then, of signals negative."""
        await self._exited.wait()

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End the process at once, unless it has ended."""
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Stop reading the log."""
        if self._log_transport is not None:
            self._log_transport.close()

    def _reap(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        try:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:
            self.returncode = _UNKNOWN_STATUS
        self._exited.set()
