"""Progress of pull, push and create on standard error: bars and a spinner on a terminal, else lines.

pulling 8eeb52dfb3bb:  42% ▕███████           ▏ 1.9 GB/4.7 GB   54 MB/s    51s
"""

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TextIO

from ftd import units
from ftd.cli import output

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_FRAME_S = 0.1
_MIN_BAR = 8
# the rate is that of the last seconds, so that a pause shows and a fast start does not
_RATE_WINDOW_S = 10.0


@dataclass(slots=True)
class Bar:
    """One transfer: ``completed`` of ``total`` bytes, and when it had how many."""

    label: str
    total: int
    completed: int = 0
    samples: list[tuple[float, int]] = field(default_factory=list)

    def update(self, completed: int, now_s: float) -> None:
        """Note that ``completed`` bytes are there at ``now_s``."""
        self.completed = completed
        self.samples.append((now_s, completed))
        while len(self.samples) > 2 and self.samples[0][0] < now_s - _RATE_WINDOW_S:
            self.samples.pop(0)

    @property
    def rate(self) -> float:
        """Bytes a second over the last seconds."""
        (first_s, first), (last_s, last) = self.samples[0], self.samples[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else 0.0

    def line(self, width: int) -> str:
        """Return the bar in ``width`` columns."""
        done = self.completed >= self.total
        share = 1.0 if done else self.completed / self.total
        head = f"{self.label} {int(share * 100):3d}% "
        sizes = units.format_bytes(self.total)
        if done:
            tail = f" {sizes:<{len(sizes) + 24}}"
        else:
            rate = self.rate
            speed = f"{units.format_bytes(int(rate))}/s" if rate > 0 else ""
            left = _short_time((self.total - self.completed) / rate) if rate > 0 else ""
            tail = f" {units.format_bytes(self.completed)}/{sizes} {speed:>9} {left:>6}"
        room = width - len(head) - len(tail) - 3
        if room < _MIN_BAR:
            return (head + tail.strip())[: width - 1]
        filled = int(room * share)
        return f"{head}▕{'█' * filled}{' ' * (room - filled)}▏{tail}".rstrip()


def _short_time(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m" if hours < 100 else "99h+"
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


class Progress:
    """Shows status objects; use as a context manager, so that the terminal is left clean.

    On a terminal every bar keeps its line, the last status has a spinner, and all are redrawn in place.
    Elsewhere each new status is one line and there are no bars.
    """

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._moves = output.has_style(self._stream)
        self._clock = clock
        self._lines: list[str | Bar] = []
        self._bar_by_key: dict[str, Bar] = {}
        self._drawn = 0
        self._drawn_s = float("-inf")

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *exc: object) -> None:
        self._draw(final=True)

    def status(self, text: str) -> None:
        """Begin a stage."""
        if self._lines and self._lines[-1] == text:
            self._draw()
            return
        self._lines.append(text)
        if self._moves:
            self._draw(force=True)
        else:
            print(text, file=self._stream, flush=True)

    def bar(self, label: str, completed: int, total: int) -> None:
        """Move the bar ``label``, which begins when it is first named."""
        bar = self._bar_by_key.get(label)
        if bar is None:
            bar = self._bar_by_key[label] = Bar(label, total)
            self._lines.append(bar)
            if not self._moves:
                print(label.rstrip(":"), file=self._stream, flush=True)
        bar.update(completed, self._clock())
        self._draw(force=completed >= total)

    def _draw(self, *, force: bool = False, final: bool = False) -> None:
        now_s = self._clock()
        if not self._moves or (not (force or final) and now_s - self._drawn_s < _FRAME_S):
            return
        width = shutil.get_terminal_size().columns
        frame = "" if final else f" {_FRAMES[int(now_s / _FRAME_S) % len(_FRAMES)]}"
        shown = []
        for i, line in enumerate(self._lines):
            if isinstance(line, Bar):
                shown.append(line.line(width))
            else:
                is_last = i == len(self._lines) - 1
                shown.append(f"{line}{frame if is_last else ''}"[: width - 1])
        height = max(shutil.get_terminal_size().lines - 1, 1)
        shown = shown[-height:]
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        # each line is written over the old one and its rest erased, so nothing flickers
        self._stream.write("\r" + up + "".join(f"{line}\x1b[K\n" for line in shown))
        self._stream.flush()
        self._drawn, self._drawn_s = len(shown), now_s


class Spinner:
    """Turns on a terminal's standard error while something blocks; ``stop`` erases it. A context manager."""

    def __init__(self, text: str = "") -> None:
        self._text = text
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        if output.has_style(sys.stderr):
            self._thread = threading.Thread(target=self._turn, daemon=True)

    def __enter__(self) -> "Spinner":
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Erase the spinner; further calls do nothing."""
        if self._thread is None:
            return
        self._ended.set()
        self._thread.join()
        self._thread = None

    def _turn(self) -> None:
        frame = 0
        while not self._ended.wait(_FRAME_S):
            sys.stderr.write(f"\r{self._text}{_FRAMES[frame % len(_FRAMES)]} \x1b[K")
            sys.stderr.flush()
            frame += 1
        if frame:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def show(items: Iterable[Mapping[str, Any]], label_suffix: str = "") -> None:
    """Show the status objects of pull, push or create until they end; ``label_suffix`` follows a label."""
    with Progress() as progress:
        for item in items:
            status = str(item.get("status", ""))
            if item.get("digest") and item.get("total"):
                progress.bar(status + label_suffix, int(item.get("completed", 0)), int(item["total"]))
            elif status:
                progress.status(status)
