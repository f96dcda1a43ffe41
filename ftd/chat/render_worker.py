"""The process in which templates of one kind run, ``python -m ftd.chat.render_worker KIND``, one at a time.

    frame := length of the body (u32, little endian) · body (JSON object)
    down     {"op": "render", "kind", "source", "variables", "seal"}
             {"op": "literals", "kind", "source"}
    up       {"status": "ready"} once, then
             {"status": "ok", "text" or "literals"}
             {"status": "refused" or "invalid" or "failed" or "limit", "text": why}

Templates come with model files and are not to be trusted: the sandbox, the limits set here (memory, no new
files) and the parent's clock keep them in.
"""

import gc
import importlib
import json
import resource
import sys
import time
from collections.abc import Iterable
from types import ModuleType
from typing import Any, BinaryIO

from ftd.chat.render_frames import HEADER

# kind -> the module with its ``pieces``, ``literals`` and ``fault``; a process imports one of them
_LANGUAGES = {"jinja": "ftd.chat.jinja_environment", "go": "ftd.chat.gotemplate.chat"}

MEMORY_BYTES = 1 << 30
# Room for a template's own text; the size of the request is added four times
MAX_OUTPUT_CHARS = 4 << 20
# Descriptors 0 to 2 exist already; with this limit nothing can be opened
_NUM_FILES = 3
# What is imported or read on first use must be there before files can no longer be opened
_FIRST = {"jinja": "{{ strftime_now('%B %Y') | tojson | trim }}{{ nothing.nowhere }}", "go": "{{ .Prompt }}"}


class _TooLong(Exception):
    """The output passed its limit."""


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (_NUM_FILES, _NUM_FILES))


def _joined(pieces: Iterable[str], max_chars: int) -> str:
    parts: list[str] = []
    length = 0
    for piece in pieces:
        length += len(piece)
        if length > max_chars:
            raise _TooLong(f"wrote more than {max_chars} characters")
        parts.append(piece)
    return "".join(parts)


def _language(kind: str) -> ModuleType:
    return importlib.import_module(_LANGUAGES[kind])


def _render(request: dict[str, Any], max_chars: int) -> str:
    pieces = _language(request["kind"]).pieces(request["source"], request["variables"])
    text = _joined(pieces, max_chars)
    seal = request["seal"]
    # repr() and ASCII JSON escape the seal; it is known that no user wrote this escape
    return text.replace(f"\\u{ord(seal):04x}", seal) if seal else text


def answer(request: dict[str, Any], max_chars: int = MAX_OUTPUT_CHARS) -> dict[str, Any]:
    """Carry out one request; every fault of a template becomes a status."""
    try:
        if request["op"] == "literals":
            return {"status": "ok", "literals": _language(request["kind"]).literals(request["source"])}
        return {"status": "ok", "text": _render(request, max_chars)}
    except MemoryError:
        gc.collect()
        return {"status": "limit", "text": f"needs more than {MEMORY_BYTES >> 20} MiB of memory"}
    except _TooLong as exc:
        return {"status": "limit", "text": str(exc)}
    except Exception as exc:  # anything can come out of a template
        status, text = _language(request["kind"]).fault(exc) or ("failed", f"{type(exc).__name__}: {exc}")
        return {"status": status, "text": text[:1000]}


def _read(stream: BinaryIO) -> bytes:
    head = stream.read(HEADER.size)
    if len(head) < HEADER.size:
        return b""
    (length,) = HEADER.unpack(head)
    return stream.read(length)


def _write(stream: BinaryIO, body: dict[str, Any]) -> None:
    data = json.dumps(body).encode("ascii")
    stream.write(HEADER.pack(len(data)) + data)
    stream.flush()


def main() -> None:
    """Answer requests until standard input ends."""
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    kind = sys.argv[1]
    time.localtime()
    answer({"op": "render", "kind": kind, "source": _FIRST[kind], "variables": {}, "seal": ""})
    _limit()
    _write(sink, {"status": "ready"})
    while body := _read(source):
        _write(sink, answer(json.loads(body), MAX_OUTPUT_CHARS + 4 * len(body)))


if __name__ == "__main__":
    main()
