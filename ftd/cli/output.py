"""What the commands print: tables, JSON, colours where a terminal wants them."""

import json
import sys
from collections.abc import Sequence
from typing import TextIO

from ftd import environment

_PADDING = "    "
GREY = "90"


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], indent: str = "") -> str:
    """Lay out rows as Ollama does: left aligned, four spaces after every cell, no rules."""
    lines = [tuple(header.upper() for header in headers), *rows] if headers else list(rows)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        indent + "".join(cell.ljust(width) + _PADDING for cell, width in zip(line, widths, strict=True))
        for line in lines
    )


def print_json(value: object) -> None:
    """Print a value as indented JSON."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def note(text: str) -> None:
    """Tell the person something that is not data."""
    print(text, file=sys.stderr, flush=True)


def has_style(stream: TextIO) -> bool:
    """Whether colours and moving text may be written to ``stream``."""
    return stream.isatty() and not environment.is_terminal_dumb()


def styled(text: str, code: str, stream: TextIO) -> str:
    """Return ``text`` in a colour (SGR code) if ``stream`` is a terminal and NO_COLOR is not set."""
    if not (has_style(stream) and environment.wants_color()):
        return text
    return f"\x1b[{code}m{text}\x1b[0m"
