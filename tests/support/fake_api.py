"""A small fake of the daemon's API for the tests of the command line: scripted answers, recorded requests."""

import asyncio
import json
import threading
from typing import Any

from aiohttp import web

DIGEST = "8eeb52dfb3bb" + "0" * 52
# Far more than anything takes: on a machine that others load, minutes pass too
TIMEOUT_S = 120


class FakeApi:
    """Answers as the API does; ``requests`` has (method, path, body) of every call but ``HEAD /``.

    An entry of ``answers`` maps "METHOD path" to JSON (200), to (status, JSON), to a list (NDJSON lines,
    HANG, CUT), to None (200, empty), or to a function of the body that returns one of these.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, Any]] = []
        self.answers: dict[str, Any] = {
            "HEAD /": None,
            "GET /api/version": {"version": "0.13.5"},
            "POST /api/show": {
                "capabilities": ["completion"],
                "details": {"family": "llama", "quantization_level": "Q4_1"},
                "model_info": {},
            },
        }
        self.disconnected = threading.Event()
        self.blobs: dict[str, bytes] = {}
        self._loop = asyncio.new_event_loop()
        self._stop: asyncio.Event | None = None
        ready = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(ready),))
        self._thread.start()
        assert ready.wait(TIMEOUT_S)

    async def _serve(self, ready: threading.Event) -> None:
        self._stop = asyncio.Event()
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = runner.addresses[0][1]
        ready.set()
        await self._stop.wait()
        await runner.cleanup()

    def close(self) -> None:
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    def bodies(self, path: str) -> list[Any]:
        return [body for _, called, body in self.requests if called == path]

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        data = await request.read()
        if request.path.startswith("/api/blobs/"):
            return self._blob(request, data)
        body = json.loads(data) if data else None
        if not (request.method == "HEAD" and request.path == "/"):
            self.requests.append((request.method, request.path, body))
        answer = self.answers.get(f"{request.method} {request.path}", (404, {"error": "404 page not found"}))
        if callable(answer):
            answer = answer(body)
        status = 200
        if isinstance(answer, tuple):
            status, answer = answer
        if isinstance(answer, list):
            return await self._stream(request, answer)
        if answer is None:
            return web.Response(status=status)
        return web.json_response(answer, status=status)

    def _blob(self, request: web.Request, data: bytes) -> web.Response:
        digest = request.path.rsplit("/", 1)[1]
        self.requests.append((request.method, request.path, len(data)))
        if request.method == "HEAD":
            return web.Response(status=200 if digest in self.blobs else 404)
        self.blobs[digest] = data
        return web.Response(status=201)

    async def _stream(self, request: web.Request, lines: list[Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        try:
            for line in lines:
                if line is HANG:
                    await asyncio.Event().wait()
                elif line is CUT:
                    assert request.transport is not None
                    request.transport.abort()
                else:
                    await response.write(json.dumps(line).encode() + b"\n")
        except asyncio.CancelledError:
            self.disconnected.set()
            raise
        return response


HANG = object()  # in a list of lines: send nothing more until the client leaves
CUT = object()  # in a list of lines: drop the connection


def model(name: str, **fields: Any) -> dict[str, Any]:
    """One entry of /api/tags."""
    return {
        "name": name,
        "model": name,
        "modified_at": "2020-01-01T00:00:00.123456789Z",
        "size": 4_661_211_808,
        "digest": DIGEST,
        "details": {},
        **fields,
    }
