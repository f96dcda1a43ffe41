"""Writing answers: one object, NDJSON lines or server-sent events, and what a failure looks like in each.

A failure before the first byte has a real status; after it, the last line tells of it. Nothing but whole
objects is ever written to NDJSON: no blank line, no comment. A stream that has nothing to say for long, while
a model loads or a prompt is computed, gives a sign of life: an object without text, or a comment of SSE.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, TypeVar

from aiohttp import web

from ftd import log
from ftd.api import api_errors, jsontext, ollama
from ftd.api.api_errors import Dialect
from ftd.api.jsontext import Fields
from ftd.api.request import Delta, Done, Event
from ftd.chat.beside import SMALL_CHARS, beside
from ftd.errors import EngineError, FtdError, InvalidRequest

logger = logging.getLogger(__name__)

_Value = TypeVar("_Value")

NDJSON = "application/x-ndjson"
SSE = "text/event-stream"
_NO_BODY = "missing request body"
SSE_END = b"data: [DONE]\n\n"
# Clients and proxies give a silent connection up, some after half a minute
SILENCE_S = 10.0
# A client that takes nothing for so long (it is suspended, say) must not keep others from loading their model
STALL_S = 300.0
# With less in its buffer (asyncio's mark is at 64 KiB) a write waits for nobody, and needs no clock, which
# takes ten microseconds
_ROOM_BYTES = 32 << 10


async def read_body(request: web.Request, parse: Callable[[Fields], _Value], empty: str = _NO_BODY) -> _Value:
    """Return what ``parse`` makes of the JSON object that a client sent, whatever type it says it is."""
    try:
        data = await request.read()
    except web.RequestPayloadError as exc:
        reason = getattr(exc.__cause__, "message", "") or str(exc)
        raise InvalidRequest(f"request body cannot be read: {' '.join(reason.split())}") from exc
    return await beside(len(data), lambda: parse(jsontext.parse_body(data, empty)))


async def read_fields(request: web.Request, empty: str = _NO_BODY) -> Fields:
    """Return the fields of a body, of which not much is wanted."""
    return await read_body(request, lambda fields: fields, empty)


async def encoded(num_chars: int, value: object) -> bytes:
    """Return JSON of about so many characters, encoded beside the event loop if it is long."""
    return await beside(
        num_chars, jsontext.encode if num_chars <= SMALL_CHARS else jsontext.encode_pieces, value
    )


async def whole_object(events: Sequence[Event], whole: Callable[[Delta, Done], Mapping[str, Any]]) -> bytes:
    """Return the one object that an answer is in the words of an API."""

    def make() -> bytes:
        return jsontext.encode_pieces(whole(*ollama.collect(events)))

    # An event is a word or so, or with its logprobs thousands of characters
    return await beside(sum(map(_num_chars, events)), make)


def _num_chars(event: Event) -> int:
    if isinstance(event, Done):
        return 8 * len(event.context or ())
    return 100 + len(event.content) + sum(100 + 100 * len(entry.top) for entry in event.logprobs)


def object_response(value: object, status: int = 200) -> web.Response:
    """Return one JSON object in Ollama's way."""
    return json_response(jsontext.encode(value), status)


def json_response(body: bytes, status: int = 200) -> web.Response:
    """Return an object that is encoded already."""
    return web.Response(status=status, body=body, content_type="application/json", charset="utf-8")


def plain_object_response(value: object, newline: bool = False) -> web.Response:
    """Return one JSON object whose type has no charset: OpenAI's, and the last line of a pull."""
    return plain_json_response(jsontext.encode(value) + (b"\n" if newline else b""))


def plain_json_response(body: bytes) -> web.Response:
    """Return such an object that is encoded already."""
    return web.Response(body=body, content_type="application/json")


def line(value: object) -> bytes:
    """Return one NDJSON line."""
    return jsontext.encode(value) + b"\n"


def event(value: object) -> bytes:
    """Return one server-sent event without a name."""
    return b"data: " + jsontext.encode(value) + b"\n\n"


def sse_sign() -> bytes:
    """Return a sign of life in server-sent events: a comment, which readers skip."""
    return b": working\n\n"


def named_event(value: Mapping[str, Any]) -> bytes:
    """Return one server-sent event whose name is the value's ``type``."""
    name = str(value["type"]).encode("ascii")
    return b"event: " + name + b"\n" + event(value)


class _Sink:
    """A response that begins with the first thing written, by the stream or the watch over its silence."""

    def __init__(self, request: web.Request, response: web.StreamResponse) -> None:
        self._request = request
        self._response = response
        self._lock = asyncio.Lock()
        self._last_s = asyncio.get_running_loop().time()

    async def write(self, data: bytes) -> None:
        async with self._lock:
            if not self._response.prepared:
                await self._response.prepare(self._request)
            await self._taken(self._response.write(data), len(data))
            self._last_s = asyncio.get_running_loop().time()

    async def end(self, data: bytes) -> None:
        """Write the last of the response."""
        if not self._response.prepared:
            await self._response.prepare(self._request)
        await self._taken(self._response.write_eof(data), len(data))

    async def _taken(self, writing: Awaitable[None], num_bytes: int) -> None:
        """Wait until the client has room for more; one that has none for long is gone."""
        transport = self._request.transport
        if transport is None or transport.get_write_buffer_size() + num_bytes < _ROOM_BYTES:
            await writing
            return
        try:
            async with asyncio.timeout(STALL_S):
                await writing
        except TimeoutError:
            logger.warning(log.fields("client reads nothing", path=self._request.path, seconds=STALL_S))
            transport.abort()
            raise ConnectionResetError("the client reads nothing") from None

    async def watch(self, sign: Callable[[], bytes]) -> None:
        """Write a sign of life whenever nothing was written for a while."""
        with suppress(ConnectionResetError):
            while True:
                left_s = self._last_s + SILENCE_S - asyncio.get_running_loop().time()
                if left_s > 0:
                    await asyncio.sleep(left_s)
                else:
                    await self.write(sign())


async def stream(
    request: web.Request,
    chunks: AsyncIterator[bytes],
    content_type: str,
    dialect: Dialect | Callable[[FtdError], bytes],
    sign: Callable[[], bytes] | None = None,
) -> web.StreamResponse:
    """Send chunks as they come. What fails before the first byte is raised; later it is the last chunk.

    ``dialect`` frames a failure, or names whose errors ``content_type`` carries. ``sign`` makes a sign of
    life.
    """
    response = web.StreamResponse(headers={"Content-Type": content_type, "Cache-Control": "no-cache"})
    sink = _Sink(request, response)
    frame: Callable[[object], bytes] = event if content_type == SSE else line

    def failure(exc: FtdError) -> bytes:
        return dialect(exc) if callable(dialect) else frame(api_errors.render(exc, dialect))

    last = b""
    try:
        async with _watched(sink, sign):
            async for chunk in chunks:
                await sink.write(chunk)
    except ConnectionResetError:
        # The client is gone; closing the chunks, in the caller, cancels what made them.
        return response
    except FtdError as exc:
        if not response.prepared:
            raise
        level = logging.ERROR if isinstance(exc, EngineError) else logging.WARNING
        logger.log(level, "stream failed path=%s error=%s", request.path, exc)
        last = failure(exc)
    except Exception as exc:  # a bug of ours, after the answer began: the stream must still end as one
        if not response.prepared:
            raise
        logger.exception("stream failed path=%s", request.path)
        last = failure(api_errors.of_ours(exc))
    # Some clients hang up as soon as they have what they wanted, before the stream has ended
    with suppress(ConnectionResetError):
        await sink.end(last)
    return response


@asynccontextmanager
async def _watched(sink: _Sink, sign: Callable[[], bytes] | None) -> AsyncIterator[None]:
    if sign is None:
        yield
        return
    watch = asyncio.create_task(sink.watch(sign))
    try:
        yield
    finally:
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch


async def status_response(
    request: web.Request, statuses: AsyncIterator[dict[str, Any]], is_stream: bool
) -> web.StreamResponse:
    """Answer pull, push and create: every status as a line, or only the last one."""
    if not is_stream:
        last: dict[str, Any] = {}
        async for status in statuses:
            last = status
        return plain_object_response(last)

    async def lines() -> AsyncGenerator[bytes, None]:
        async for status in statuses:
            yield line(status)

    async with aclosing(lines()) as chunks:
        return await stream(request, chunks, NDJSON, "ollama")


def joined(values: Iterable[_Value], frame: Callable[[_Value], bytes]) -> bytes:
    """Return several objects framed one after the other."""
    return b"".join(map(frame, values))
