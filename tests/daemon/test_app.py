"""The application as a whole: who it says it is, routes that are imported late, what starts with it."""

import importlib
import subprocess
import sys

import pytest
from aiohttp import web
from live_daemon import running

import ftd
from ftd import config
from ftd.daemon import app as app_module
from ftd.daemon.app import MAX_BODY_BYTES, make_app
from ftd.daemon.services import OLLAMA_VERSION, SERVICES
from ftd.registry.store import Store

NAME = f"ftd/{ftd.__version__}"


def routes_of(app):
    return {(route.method, route.resource.canonical) for route in app.router.routes()}


@pytest.fixture
def made(tmp_path):
    """An application that nobody runs."""
    return make_app(config.load(environ={}), Store(tmp_path / "models"))


async def test_every_answer_says_who_gives_it(tmp_path):
    """A second daemon that finds its port taken reads it; also from errors and refusals."""
    async with running(tmp_path) as daemon:
        for path, headers, status in (
            ("/api/version", {}, 200),
            ("/nowhere", {}, 404),
            ("/api/version", {"Origin": "http://evil.example"}, 403),
            ("/api/version", {"Host": "evil.example"}, 403),
        ):
            response = await daemon.get(path, headers=headers)
            assert (response.status, response.headers["Server"]) == (status, NAME)
        streamed = await daemon.post("/api/generate", {"model": "tiny", "prompt": "x"})
        assert streamed.headers["Server"] == NAME
        assert (await daemon.json("/api/version"))["version"] == OLLAMA_VERSION


def test_late_routes_exist_where_the_table_says(made):
    """A name misspelt there would be found by the first request only."""
    listed = routes_of(made)
    for method, path, module, name in app_module._LATE_ROUTES:
        assert (method, path) in listed
        handler = getattr(importlib.import_module(f"ftd.daemon.{module}"), name)
        assert callable(handler)


def test_no_route_is_registered_twice(made):
    found = [
        (route.method, route.resource.canonical) for route in made.router.routes() if route.method != "HEAD"
    ]
    assert len(found) == len(set(found))


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    "path",
    [
        *("/api/generate", "/api/chat", "/api/embed", "/api/create", "/api/pull", "/api/push", "/api/show"),
        *("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/messages", "/v1/responses"),
    ],
)
async def test_other_verbs_are_refused_with_those_that_are_allowed(daemon, path):
    response = await daemon.get(path)
    assert response.status == 405 and response.headers["Allow"] == "POST"


def test_what_a_start_does_not_need_is_not_imported():
    """In a fresh interpreter: NumPy, importers and the registry's client come with their first request."""
    program = (
        "import sys; from ftd import config; from ftd.daemon.app import make_app;"
        "from ftd.registry.store import Store; from pathlib import Path;"
        "make_app(config.load(environ={}), Store(Path(sys.argv[1])));"
        "print(*sorted(name for name in sys.modules if name == 'numpy' or name.startswith('ftd.')))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, "/nonexistent"], capture_output=True, text=True, check=True
    )
    loaded = set(result.stdout.split())
    late = {f"ftd.daemon.{module}" for _, _, module, _ in app_module._LATE_ROUTES}
    assert loaded.isdisjoint(late | {"numpy", "ftd.registry.client", "ftd.ftw.import_gguf"})
    assert "ftd.daemon.completion_routes" in loaded


async def test_services_start_and_end_with_the_application(made, monkeypatch):
    events = []

    async def note(event):
        events.append(event)

    services = made[SERVICES]
    monkeypatch.setattr(services.manager, "start", lambda: note("manager starts"))
    monkeypatch.setattr(services.manager, "close", lambda: note("manager ends"))
    monkeypatch.setattr(services.catalog, "close", lambda: note("catalog ends"))
    runner = web.AppRunner(made)
    await runner.setup()
    assert events == ["manager starts"]
    await runner.cleanup()
    assert events == ["manager starts", "manager ends", "catalog ends"]
    assert "registry" not in services.__dict__, "nobody asked for it"


async def test_a_body_that_is_too_large_is_refused_as_such(tmp_path, monkeypatch):
    assert MAX_BODY_BYTES == 64 << 20
    monkeypatch.setattr(app_module, "MAX_BODY_BYTES", 1000)
    async with running(tmp_path) as daemon:
        fits = {"model": "tiny", "prompt": "x" * 900, "stream": False}
        assert (await daemon.post("/api/generate", fits)).status == 200
        response = await daemon.post("/api/generate", fits | {"prompt": "x" * 1001})
        assert response.status == 413 and "error" in await response.json()


@pytest.mark.parametrize("path", ["/v1/chat/completions/", "//v1/chat/completions", "/v1//chat/completions"])
async def test_a_slash_too_many_leads_to_the_route(tmp_path, path):
    """A base address that ends in a slash makes such paths; the body is sent again, as it was."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    async with running(tmp_path) as daemon:
        response = await daemon.post(path, body, headers={"Origin": "http://localhost:3000"})
        assert response.status == 200
        assert (await response.json())["choices"][0]["message"]["content"]
        (redirect,) = response.history
        assert (redirect.status, redirect.headers["Location"]) == (307, "/v1/chat/completions")
        assert redirect.headers["Access-Control-Allow-Origin"] == "http://localhost:3000"
        for unknown in ("/v1/nowhere/", "/v1/chat/completionss", "/x"):
            assert (await daemon.post(unknown, body)).status == 404
