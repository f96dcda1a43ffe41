"""Answers as bytes: frames of each kind, failures before and behind the first byte, signs of life."""

import asyncio
import json
import logging
import threading
from contextlib import aclosing, asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from ftd.api import ollama
from ftd.api.request import Delta, Done, Logprob
from ftd.chat import beside
from ftd.daemon import responses
from ftd.daemon.middleware import answer_errors
from ftd.daemon.responses import NDJSON, SSE, stream
from ftd.errors import EngineError, InvalidRequest

LINE_ENDS = "\u0085\u2028\u2029\x0b\x0c\x1c"


@asynccontextmanager
async def serving(handler):
    """A server with this handler, and the answer to a request for it, whose body is not read yet."""
    app = web.Application(middlewares=[web.middleware(answer_errors)], client_max_size=1000)
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
    try:
        async with aiohttp.ClientSession() as session:
            yield session, url
    finally:
        await runner.cleanup()


def streaming(chunks, kind=NDJSON, dialect="ollama", sign=None):
    """A handler that sends what ``chunks()`` yields."""

    async def handler(request):
        return await stream(request, chunks(), kind, dialect, sign)

    return handler


def test_frames_are_one_line_each():
    """Whatever ends a line for some client is escaped."""
    value = {"text": f"a\nb{LINE_ENDS}\r\n<&>é\U0001f600"}
    for data, start in ((responses.line(value), b""), (responses.event(value), b"data: ")):
        body = data.rstrip(b"\n")
        assert data.startswith(start) and body.isascii() and len(body.decode().splitlines()) == 1
        assert json.loads(body.removeprefix(start)) == value
    assert responses.line({}) == b"{}\n" and responses.event({}) == b"data: {}\n\n"
    assert responses.named_event({"type": "a.b"}) == b'event: a.b\ndata: {"type":"a.b"}\n\n'
    assert responses.joined([1, 2], lambda value: b"%d;" % value) == b"1;2;"
    assert responses.sse_sign().startswith(b":"), "a comment, which readers skip"


@pytest.mark.parametrize("kind", [NDJSON, SSE])
async def test_chunks_go_out_as_they_come(kind):
    """The second is made only when the client has read the first."""
    read = asyncio.Event()

    async def chunks():
        yield b"one\n"
        await read.wait()
        yield b"two\n"

    async with serving(streaming(chunks, kind)) as (session, url), session.get(url) as response:
        assert response.status == 200 and response.content_type == kind
        assert response.headers["Cache-Control"] == "no-cache" and "Content-Length" not in response.headers
        assert await response.content.readline() == b"one\n"
        read.set()
        assert await response.read() == b"two\n"


async def test_a_stream_of_nothing_is_empty_and_whole():
    async def chunks():
        return
        yield

    async with serving(streaming(chunks)) as (session, url), session.get(url) as response:
        assert (response.status, await response.read()) == (200, b"")


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (InvalidRequest("no such thing"), 400, "no such thing"),
        (EngineError("it is broken"), 500, "it is broken"),
        (ZeroDivisionError("a bug"), 500, "internal error: ZeroDivisionError: a bug"),
    ],
)
async def test_a_failure_before_the_first_byte_has_a_status_and_later_it_is_the_last_line(
    error, status, text
):
    async def early():
        raise error
        yield

    async def late():
        yield b"{}\n"
        raise error

    async with serving(streaming(early)) as (session, url), session.get(url) as response:
        body = await response.json()
        assert response.status == status and text in body["error"]
    async with serving(streaming(late)) as (session, url), session.get(url) as response:
        assert response.status == 200
        first, last, end = (await response.read()).split(b"\n")
        assert (first, end) == (b"{}", b"") and text in json.loads(last)["error"]


@pytest.mark.parametrize(
    ("kind", "dialect", "wanted"),
    [
        (SSE, "openai", lambda data: json.loads(data.removeprefix(b"data: "))["error"]["message"]),
        (
            SSE,
            lambda exc: b"event: error\ndata: " + exc.message.encode() + b"\n\n",
            lambda data: data.decode(),
        ),
        (NDJSON, "ollama", lambda data: json.loads(data)["error"]),
    ],
)
async def test_a_late_failure_is_framed_as_its_stream_is(kind, dialect, wanted):
    async def chunks():
        yield b"first\n\n"
        raise InvalidRequest("too late")

    async with serving(streaming(chunks, kind, dialect)) as (session, url), session.get(url) as response:
        _, _, rest = (await response.read()).partition(b"first\n\n")
        assert "too late" in wanted(rest.strip())


async def test_silence_is_broken_and_only_silence(monkeypatch):
    monkeypatch.setattr(responses, "SILENCE_S", 0.01)
    go_on = asyncio.Event()

    async def chunks():
        await go_on.wait()
        yield b"{}\n"

    async with (
        serving(streaming(chunks, sign=lambda: b'{"sign":1}\n')) as (session, url),
        session.get(url) as response,
    ):
        for _ in range(3):
            assert await response.content.readline() == b'{"sign":1}\n'
        go_on.set()
        *signs, last, end = (await response.read()).split(b"\n")
        assert (last, end) == (b"{}", b"") and set(signs) <= {b'{"sign":1}'}


async def test_a_failure_behind_a_sign_is_the_last_line(monkeypatch):
    monkeypatch.setattr(responses, "SILENCE_S", 0.01)
    fail = asyncio.Event()

    async def chunks():
        await fail.wait()
        raise EngineError("too large")
        yield

    async with (
        serving(streaming(chunks, sign=lambda: b"{}\n")) as (session, url),
        session.get(url) as response,
    ):
        assert response.status == 200 and await response.content.readline() == b"{}\n"
        fail.set()
        *_, last, _ = (await response.read()).split(b"\n")
        assert json.loads(last)["error"] == "too large"


@pytest.mark.parametrize(
    ("data", "status", "text"),
    [
        (b'{"a": 1} and more', 200, ""),
        (b"\xef\xbb\xbf {}", 200, ""),
        (b"", 400, "nothing there"),
        (b" \r\n\t", 400, "nothing there"),
        (b"[1]", 400, "request body must be a JSON object, not array"),
        (b"{", 400, "invalid JSON"),
        (b'{"a": NaN}', 400, "NaN is not a number"),
        (b"\xff", 400, "request body is not UTF-8: invalid start byte at byte 0"),
        (b"[" * 900, 400, "invalid JSON"),
        (b"[" * 1001, 413, ""),
    ],
)
async def test_bodies_are_objects_whatever_type_they_say_they_are(data, status, text):
    async def handler(request):
        fields = await responses.read_fields(request, "nothing there")
        return responses.object_response(dict(fields.values))

    async with (
        serving(handler) as (session, url),
        session.post(url, data=data, headers={"Content-Type": "text/plain"}) as response,
    ):
        body = await response.json(content_type=None)
        assert response.status == status
        assert text in (body["error"] if status >= 400 else "")


async def test_a_status_stream_or_its_last_line_alone():
    async def statuses():
        for number in range(3):
            yield {"status": str(number)}

    async def handler(request):
        return await responses.status_response(request, statuses(), request.path == "/stream")

    async with serving(handler) as (session, url):
        async with session.get(f"{url}/stream") as response:
            assert response.content_type == NDJSON
            assert await response.read() == b'{"status":"0"}\n{"status":"1"}\n{"status":"2"}\n'
        async with session.get(f"{url}/whole") as response:
            assert response.headers["Content-Type"] == "application/json"
            assert await response.read() == b'{"status":"2"}'


@pytest.mark.parametrize("moment", ["before a chunk", "before an error", "before the end"])
async def test_client_that_leaves_is_no_error(moment, caplog):
    """What Codex does: it closes the connection when it has read the last event."""
    returned = []

    async def handler(request):
        async def chunks():
            yield b"{}\n"
            request.transport.close()
            if moment == "before a chunk":
                yield b"{}\n"
            if moment == "before an error":
                raise InvalidRequest("too late")

        returned.append(await stream(request, chunks(), NDJSON, "ollama"))
        return returned[0]

    async with serving(handler) as (session, url), session.get(url) as response:
        with pytest.raises(aiohttp.ClientError):
            await response.read()
    assert returned[0].status == 200
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("chunk_bytes", [100, 65536])
async def test_a_client_that_reads_nothing_is_gone_after_a_while(monkeypatch, chunk_bytes):
    """What made the chunks is closed then: it holds a lease, for which others wait."""
    monkeypatch.setattr(responses, "STALL_S", 0.2)
    returned = asyncio.Event()

    async def chunks():
        while True:
            yield b"x" * chunk_bytes

    async def handler(request):
        async with aclosing(chunks()) as endless:
            response = await stream(request, endless, NDJSON, "ollama")
        returned.set()
        return response

    async with serving(handler) as (_, url):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", int(url.rpartition(":")[2]), limit=1 << 16
        )
        writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        await asyncio.wait_for(returned.wait(), 60)
        assert not (await reader.read()).endswith(b"0\r\n\r\n"), "cut off, not ended"
        writer.close()
        await writer.wait_closed()


async def test_a_slow_client_gets_everything(monkeypatch):
    """It is slower than the limit in all, not for one chunk."""
    monkeypatch.setattr(responses, "STALL_S", 0.5)
    sent = 48 << 20

    async def chunks():
        for _ in range(sent >> 20):
            yield b"x" * (1 << 20)

    async with serving(streaming(chunks)) as (session, url), session.get(url) as response:
        received, begun = 0, asyncio.get_running_loop().time()
        while data := await response.content.readany():
            received += len(data)
            if asyncio.get_running_loop().time() - begun < 0.7:
                await asyncio.sleep(0.05)
    assert received == sent


@pytest.mark.parametrize(("num_chars", "is_beside"), [(10, False), (500, True)])
async def test_large_bodies_are_read_beside_the_event_loop(monkeypatch, num_chars, is_beside):
    """A chat of 100,000 messages held every other request up for seconds."""
    monkeypatch.setattr(beside, "SMALL_CHARS", 100)
    loop_thread, threads = threading.get_ident(), []

    def parse(fields):
        threads.append(threading.get_ident())
        return fields.text("a")

    async def handler(request):
        return responses.object_response({"length": len(await responses.read_body(request, parse))})

    async with (
        serving(handler) as (session, url),
        session.post(url, json={"a": "x" * num_chars}) as response,
    ):
        assert await response.json() == {"length": num_chars}
    assert (threads[0] != loop_thread) is is_beside


@pytest.mark.parametrize("count", [1, 5000])
async def test_a_whole_answer_is_the_same_however_long(count):
    entry = Logprob("x", b"x", -0.5, [Logprob("y", b"y", -1.0)])
    events = [Delta(content="x", logprobs=[entry]) for _ in range(count)]
    end = Done(reason="stop", output_tokens=count)

    def whole(delta, done):
        return {
            "text": delta.content,
            "logprobs": list(map(ollama.logprob, delta.logprobs)),
            "n": done.output_tokens,
        }

    found = json.loads(await responses.whole_object([*events, end], whole))
    assert found == json.loads(json.dumps(whole(*ollama.collect([*events, end]))))
