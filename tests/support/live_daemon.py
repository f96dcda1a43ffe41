"""A real daemon on a real socket with scripted engines behind it."""

import asyncio
import hashlib
import json
import threading
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial

import aiohttp
import pytest
from aiohttp import web
from fake_engine import fake_command
from tiny_model import add_model, ids_of

from ftd import config
from ftd.daemon.app import make_app
from ftd.daemon.services import SERVICES
from ftd.daemon.spawn import WORKER_COMMAND
from ftd.registry import server as registry_server
from ftd.registry.store import Store


@dataclass(frozen=True)
class Exchange:
    """One request that was answered: its JSON body (None for other bodies) and the status."""

    method: str
    path: str
    headers: dict
    body: object
    status: int


class Daemon:
    """Where it listens, what it has, and a client session on it."""

    def __init__(self, url, store, services, session):
        self.url, self.store, self.services, self.session = url, store, services, session

    async def post(self, path, body=None, **keywords):
        """Send JSON; returns the response, read to its end."""
        response = await self.session.post(self.url + path, json=body, **keywords)
        await response.read()
        return response

    async def get(self, path, **keywords):
        response = await self.session.get(self.url + path, **keywords)
        await response.read()
        return response

    async def json(self, path, body=None, status=200, **keywords):
        """The decoded answer, which must have this status."""
        answer = self.get(path, **keywords) if body is None else self.post(path, body, **keywords)
        response = await answer
        assert response.status == status, await response.text()
        return await response.json(content_type=None)

    async def lines(self, path, body):
        """The objects of a streamed answer, which must be well-formed NDJSON."""
        response = await self.post(path, body)
        text = await response.text()
        assert response.status == 200, text
        assert response.content_type == "application/x-ndjson"
        assert text.endswith("\n") and "\n\n" not in text
        return [json.loads(line) for line in text.splitlines()]

    async def events(self, path, body):
        """The data of a streamed answer's events, which must be well-formed SSE."""
        response = await self.post(path, {"stream": True, **body})
        text = await response.text()
        assert response.status == 200, text
        assert response.content_type == "text/event-stream"
        parts = text.split("\n\n")
        assert parts[-1] == "" and all(part.startswith("data: ") for part in parts[:-1])
        return [part.removeprefix("data: ") for part in parts[:-1]]


def says(text, **script):
    """The command of an engine that answers ``text``."""
    return fake_command(reply=ids_of(text), **script)


@asynccontextmanager
async def running(tmp_path, command=None, models=("tiny",), host="127.0.0.1:0", record=None, **server):
    """A daemon over a fresh store with these tiny models; ``record`` is told every Exchange."""
    # Read when the application is made: fixtures of a wider scope run before the environment is scrubbed.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FTD_HOME", str(tmp_path / "home"))
        store, app = _application(tmp_path, command, models, host, server)
    if record is not None:
        app.middlewares.insert(0, web.middleware(partial(_recorded, record)))
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    async with aiohttp.ClientSession() as session:
        try:
            yield Daemon(f"http://127.0.0.1:{port}", store, app[SERVICES], session)
        finally:
            await session.close()
            await runner.cleanup()


@asynccontextmanager
async def running_real(tmp_path, gguf):
    """A daemon with the real engine; the model of a GGUF file, created over HTTP, is called ``smol``."""
    async with running(tmp_path, WORKER_COMMAND, models=()) as daemon:
        data = await asyncio.to_thread(gguf.read_bytes)
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        with gguf.open("rb") as file:
            response = await daemon.session.post(f"{daemon.url}/api/blobs/{digest}", data=file)
        assert response.status == 201
        created = await daemon.post("/api/create", {"model": "smol", "files": {"m.gguf": digest}})
        assert json.loads((await created.text()).splitlines()[-1]) == {"status": "success"}
        yield daemon


@contextmanager
def running_in_thread(*arguments, **keywords):
    """The same on an event loop in a thread of its own, for clients that block; use ``url`` and ``store``."""
    started, stop = threading.Event(), asyncio.Event()
    found = []

    async def serve():
        found.append(asyncio.get_running_loop())
        async with running(*arguments, **keywords) as daemon:
            found.append(daemon)
            started.set()
            await stop.wait()

    def run():
        try:
            asyncio.run(serve())
        except BaseException as exc:
            found.append(exc)
            raise
        finally:
            started.set()

    thread = threading.Thread(target=run, name="daemon")
    thread.start()
    started.wait()
    try:
        if not isinstance(found[-1], Daemon):
            raise RuntimeError("the daemon did not start") from found[-1]
        yield found[-1]
    finally:
        if thread.is_alive():
            found[0].call_soon_threadsafe(stop.set)
        thread.join()


@asynccontextmanager
async def registry(tmp_path, models=("tiny",)):
    """Our registry server over a store of its own with these tiny models; yields its ``host:port``."""
    store = Store(tmp_path / "registry")
    for seed, name in enumerate(models):
        add_model(store, name, seed=seed)
    runner = web.AppRunner(registry_server.make_app(store), access_log=None, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
    finally:
        await runner.cleanup()


async def _recorded(record, request, handler):
    is_json = request.body_exists and not request.path.startswith("/api/blobs/")
    data = await request.read() if is_json else b""
    status = 0
    try:
        response = await handler(request)
        status = response.status
        return response
    finally:
        body = json.loads(data) if data else None
        record(Exchange(request.method, request.path_qs, dict(request.headers), body, status))


def _application(tmp_path, command, models, host, server):
    store = Store(tmp_path / "models")
    for seed, name in enumerate(models):
        add_model(store, name, seed=seed)
    settings = config.load(environ={})
    settings = settings._replace(server=settings.server._replace(host=host, **server))
    settings = settings._replace(registry=settings.registry._replace(models_dir=store.models_dir))
    return store, make_app(settings, store, command or fake_command(reply=ids_of("Hello, world")))
