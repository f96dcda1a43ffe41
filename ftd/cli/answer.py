"""Printing an answer as it streams: thinking marked off, words wrapped on a terminal, timings at the end."""

import shutil
import sys
import unicodedata
from collections.abc import Mapping
from typing import Any, TextIO

from ftd import units
from ftd.cli import output

# columns kept free at the right edge, as Ollama does
_MARGIN = 5


class WordWrap:
    """Writes text to a terminal, breaking lines between words; a word longer than a line stays whole.

    A word is held until its end is known, so nothing that was written has to be taken back.
    """

    def __init__(self, stream: TextIO, width: int) -> None:
        self._stream = stream
        self._width = max(width - _MARGIN, 1)
        self._column = 0
        self._blank = ""
        self._word = ""

    def write(self, text: str) -> None:
        """Take more text; whole words of it are written."""
        for char in text:
            if char == "\n":
                self._end_word()
                self._blank = ""
                self._stream.write(char)
                self._column = 0
            elif char in " \t":
                self._end_word()
                self._blank += char
            else:
                self._word += char
                if _width(char) == 2:
                    self._end_word()
        self._stream.flush()

    def flush(self) -> None:
        """Write what is held."""
        self._end_word()
        self._stream.write(self._blank)
        self._blank = ""
        self._stream.flush()

    def _end_word(self) -> None:
        if not self._word:
            return
        needed = sum(map(_width, self._word))
        if self._column and self._column + len(self._blank) + needed > self._width:
            self._stream.write("\n")
            self._column, self._blank = 0, ""
        self._stream.write(self._blank + self._word)
        self._column += len(self._blank) + needed
        self._blank = self._word = ""


def _width(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


class Plain:
    """Writes text as it comes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """Write ``text`` at once."""
        self._stream.write(text)
        self._stream.flush()

    def flush(self) -> None:
        """Nothing is held."""


class Answer:
    """One answer on its way to ``stream``; ``content`` and ``thinking`` are the texts so far."""

    def __init__(
        self, *, wordwrap: bool = True, hide_thinking: bool = False, stream: TextIO | None = None
    ) -> None:
        self._stream = sys.stdout if stream is None else stream
        self._hide_thinking = hide_thinking
        wraps = wordwrap and output.has_style(self._stream)
        width = shutil.get_terminal_size().columns
        self._writer: WordWrap | Plain = WordWrap(self._stream, width) if wraps else Plain(self._stream)
        self._is_thinking = False
        self.content = ""
        self.thinking = ""

    def add(self, content: str, thinking: str = "") -> None:
        """Print the next piece of either text."""
        if thinking:
            self.thinking += thinking
            if not self._hide_thinking:
                if not self._is_thinking:
                    self._writer.write(output.styled("Thinking...", output.GREY, self._stream) + "\n")
                    self._is_thinking = True
                self._writer.write(thinking)
        if content:
            self._end_thinking()
            self.content += content
            self._writer.write(content)

    def finish(self) -> None:
        """End the text with two newlines."""
        self._end_thinking()
        self._writer.flush()
        self._stream.write("\n\n")
        self._stream.flush()

    def _end_thinking(self) -> None:
        if self._is_thinking:
            self._is_thinking = False
            mark = output.styled("...done thinking.", output.GREY, self._stream)
            self._writer.write(f"\n{mark}\n\n")


def left_out(final: Mapping[str, Any]) -> str:
    """Say what of the conversation did not fit the window, by an answer's last object; empty if all did."""
    told = [
        f"{final[key]} tokens of {what} were left out"
        for key, what in (("truncated_tokens", "the prompt"), ("shifted_tokens", "what came first"))
        if final.get(key)
    ]
    if not told:
        return ""
    return f"warning: the context window was too small: {', '.join(told)} (num_ctx, FTD_CONTEXT_LENGTH)"


def timings(final: Mapping[str, Any]) -> str:
    """Return the lines of ``--verbose`` from an answer's last object; what is zero has none."""
    lines = []
    for name, duration in (("total", "total_duration"), ("load", "load_duration")):
        if final.get(duration):
            lines.append((f"{name} duration", units.format_duration(final[duration])))
    for name in ("prompt eval", "eval"):
        key = name.replace(" ", "_")
        count, duration_ns = final.get(f"{key}_count"), final.get(f"{key}_duration")
        if count:
            lines.append((f"{name} count", f"{count} token(s)"))
        if duration_ns:
            lines.append((f"{name} duration", units.format_duration(duration_ns)))
        if count and duration_ns:
            lines.append((f"{name} rate", f"{count / duration_ns * 1e9:.2f} tokens/s"))
    return "\n".join(f"{label + ':':<22}{value}" for label, value in lines)
