"""The process in which templates run, ``python -m ftd.chat.render_worker``: one request at a time.

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
import json
import pprint  # noqa: F401 (the filter of this name imports it)
import resource
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, BinaryIO

import jinja2

from ftd.chat import jinja_environment
from ftd.chat.gotemplate import GoTemplateError, chat, parse
from ftd.chat.gotemplate.discovery import literals as go_literals
from ftd.chat.render_frames import HEADER

MEMORY_BYTES = 1 << 30
# Room for a template's own text; the size of the request is added four times
MAX_OUTPUT_CHARS = 4 << 20
# Descriptors 0 to 2 exist already; with this limit nothing can be opened
_NUM_FILES = 3
_FIRST = "{{ strftime_now('%B %Y') | tojson | trim }}{{ nothing.nowhere }}"


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


def _literals(kind: str, source: str) -> list[str]:
    if kind == "jinja":
        with suppress(jinja2.TemplateError):  # rendering meets it again
            jinja_environment.compiled(source)
        return jinja_environment.literals(source)
    return go_literals(parse(source))


def _render(request: dict[str, Any], max_chars: int) -> str:
    run = jinja_environment.pieces if request["kind"] == "jinja" else chat.pieces
    text = _joined(run(request["source"], request["variables"]), max_chars)
    seal = request["seal"]
    # repr() and ASCII JSON escape the seal; it is known that no user wrote this escape
    return text.replace(f"\\u{ord(seal):04x}", seal) if seal else text


def answer(request: dict[str, Any], max_chars: int = MAX_OUTPUT_CHARS) -> dict[str, Any]:
    """Carry out one request; every fault of a template becomes a status."""
    try:
        if request["op"] == "literals":
            return {"status": "ok", "literals": _literals(request["kind"], request["source"])}
        return {"status": "ok", "text": _render(request, max_chars)}
    except jinja_environment.Refused as exc:
        return {"status": "refused", "text": str(exc)}
    except jinja2.TemplateSyntaxError as exc:
        return {"status": "invalid", "text": f"line {exc.lineno}: {exc.message}"[:1000]}
    except GoTemplateError as exc:
        return {"status": exc.status, "text": str(exc)[:1000]}
    except MemoryError:
        gc.collect()
        return {"status": "limit", "text": f"needs more than {MEMORY_BYTES >> 20} MiB of memory"}
    except _TooLong as exc:
        return {"status": "limit", "text": str(exc)}
    except Exception as exc:  # anything can come out of a template
        return {"status": "failed", "text": f"{type(exc).__name__}: {exc}"[:1000]}


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
    # What is imported or read on first use must be there before files can no longer be opened
    time.localtime()
    answer({"op": "render", "kind": "jinja", "source": _FIRST, "variables": {}, "seal": ""})
    _limit()
    _write(sink, {"status": "ready"})
    while body := _read(source):
        _write(sink, answer(json.loads(body), MAX_OUTPUT_CHARS + 4 * len(body)))


if __name__ == "__main__":
    main()
