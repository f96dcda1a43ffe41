"""The real command line at a pseudo-terminal."""

import contextlib
import fcntl
import io
import os
import pty
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

# Far more than anything takes: on a machine that others load, minutes pass too
TIMEOUT_S = 120


@contextlib.contextmanager
def killed_on_failure(process: "subprocess.Popen[str]") -> Iterator[None]:
    """Kill ``process`` if the block fails, so that nobody waits for it in vain."""
    try:
        yield
    except BaseException:
        process.kill()
        raise


class TerminalStream(io.StringIO):
    """Text written as to a terminal."""

    def isatty(self) -> bool:
        return True


class Terminal:
    """``ftd WORDS…`` at a terminal of 80 columns and 24 lines."""

    def __init__(self, words: tuple[str, ...], env: dict[str, str], cwd: Path) -> None:
        self.output = ""
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ftd", *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=env,
            cwd=cwd,
            start_new_session=True,
        )
        os.close(slave)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait_for(self, text: str) -> str:
        """Return what was printed since the last call up to and with ``text``."""
        while text not in self.output:
            assert self._read(), f"ended without {text!r}: {self.output!r}"
        seen, _, self.output = self.output.partition(text)
        return seen + text

    def end(self) -> tuple[str, int]:
        """Return the rest of the output and the exit code."""
        while self._read():
            pass
        return self.output, self.process.wait(TIMEOUT_S)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._master], [], [], TIMEOUT_S)
        assert ready, f"nothing comes: {self.output!r}"
        try:
            data = os.read(self._master, 65536)
        except OSError:
            return False
        self.output += data.decode("utf-8", "replace").replace("\r\n", "\n")
        return bool(data)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(TIMEOUT_S)
        os.close(self._master)
