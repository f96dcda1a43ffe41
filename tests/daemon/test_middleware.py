"""Host check and CORS against the reference's table, and against what a rebound or foreign page sends."""

import json

import pytest
import pytest_asyncio
from live_daemon import running

from ftd.config import ServerConfig
from ftd.daemon.middleware import Cors, HostCheck

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def daemon(tmp_path_factory):
    async with running(tmp_path_factory.mktemp("daemon"), origins=("https://ok.example",)) as daemon:
        yield daemon


LOCAL = HostCheck(ServerConfig(host="127.0.0.1:11434"))
OPEN = HostCheck(ServerConfig(host="0.0.0.0:11434"))


@pytest.mark.parametrize("check", [LOCAL, OPEN])
@pytest.mark.parametrize(
    "host",
    [
        *("", "localhost", "LOCALHOST:11434", "127.0.0.1", "127.0.0.1:11434", "127.9.9.9:1", "[::1]:11434"),
        *("0.0.0.0:11434", "192.168.1.5:11434", "10.0.0.1", "my.local", "x.localhost:1"),
        *("host.docker.internal:11434", "[fe80::1]:80"),
    ],
)
async def test_own_hosts_are_allowed(check, host):
    assert check.allows(host)


@pytest.mark.parametrize("check", [LOCAL, OPEN])
@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:11434", "8.8.8.8", "localhost.evil.example", "127.0.0.1.nip.io", "a.b"],
)
async def test_foreign_hosts_are_refused_on_every_bind(check, host):
    assert not check.allows(host)


async def test_names_of_one_label_are_allowed_in_a_network_only():
    assert OPEN.allows("ftd:11434") and not LOCAL.allows("ftd:11434")


async def test_configured_hosts_are_allowed():
    check = HostCheck(ServerConfig(host="ai.example.com:80", origins=("https://ui.example.com:8443",)))
    assert check.allows("ai.example.com") and check.allows("ui.example.com:11434")
    assert HostCheck(ServerConfig(origins=("*",))).allows("any.example")


@pytest.mark.parametrize("path", ["/", "/api/tags", "/v1/models", "/nope"])
async def test_rebound_page_gets_403_before_anything_else(daemon, path):
    headers = {"Host": "evil.example", "Origin": "http://evil.example"}
    response = await daemon.get(path, headers=headers)
    assert response.status == 403
    assert "Access-Control-Allow-Origin" not in response.headers
    assert "FTD_ORIGINS" in await response.text()


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        *(
            (origin, True)
            for origin in ("http://localhost", "https://localhost:3000", "http://127.0.0.1:5173")
        ),
        *((origin, True) for origin in ("http://0.0.0.0", "app://x", "file://", "tauri://localhost")),
        *((origin, True) for origin in ("vscode-webview://abc", "https://ok.example")),
        *((origin, False) for origin in ("null", "https://evil.example", "http://localhost.evil.example")),
        *(
            (origin, False)
            for origin in ("chrome-extension://abc", "https://ok.example.evil", "http://localhosts")
        ),
        *((origin, False) for origin in ("https://127.0.0.1.evil.example", "")),
    ],
)
async def test_origins(origin, allowed):
    assert Cors(("https://ok.example",)).allows(origin) == allowed


async def test_star_and_wildcards_in_configured_origins():
    assert Cors(("*",)).allows("https://any.example")
    cors = Cors(("chrome-extension://*", "https://*.example.com"))
    assert cors.allows("chrome-extension://abc") and cors.allows("https://a.example.com")
    assert not cors.allows("https://example.org")


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS"])
async def test_bad_origin_is_refused_whatever_the_method(daemon, method):
    headers = {"Origin": "https://evil.example", "Content-Type": "text/plain"}
    body = json.dumps({"model": "tiny", "source": "tiny", "destination": "stolen"})
    response = await daemon.session.request(method, daemon.url + "/api/copy", data=body, headers=headers)
    assert response.status == 403 and "FTD_ORIGINS" in await response.text()
    assert [model.name.model for model in daemon.store.list()] == ["tiny"]


async def test_allowed_origin_is_echoed_also_on_errors_and_streams(daemon):
    headers = {"Origin": "https://ok.example"}
    for response in (
        await daemon.get("/api/tags", headers=headers),
        await daemon.post("/api/chat", {}, headers=headers),
        await daemon.post("/api/generate", {"model": "tiny", "prompt": "x"}, headers=headers),
    ):
        assert response.headers["Access-Control-Allow-Origin"] == "https://ok.example"
        assert response.headers["Vary"] == "Origin"
        assert "Access-Control-Allow-Credentials" not in response.headers


async def test_same_origin_and_no_origin_get_no_headers(daemon):
    for headers in ({}, {"Origin": daemon.url}):
        response = await daemon.get("/api/tags", headers=headers)
        assert response.status == 200 and "Access-Control-Allow-Origin" not in response.headers


async def test_preflight(daemon):
    headers = {
        "Origin": "https://ok.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Private-Network": "true",
    }
    response = await daemon.session.options(daemon.url + "/api/chat", headers=headers)
    assert response.status == 204
    assert response.headers["Access-Control-Allow-Methods"] == "GET,POST,PUT,PATCH,DELETE,HEAD,OPTIONS"
    assert "X-Stainless-Custom-Poll-Interval" in response.headers["Access-Control-Allow-Headers"]
    assert response.headers["Access-Control-Max-Age"] == "43200"
    assert response.headers["Access-Control-Allow-Private-Network"] == "true"
    assert response.headers["Access-Control-Allow-Origin"] == "https://ok.example"
    assert {part.strip() for part in ",".join(response.headers.getall("Vary")).split(",")} == {
        *("Origin", "Access-Control-Request-Method", "Access-Control-Request-Headers"),
    }


async def test_unknown_path_and_wrong_verb(daemon):
    missing = await daemon.get("/nope")
    assert (missing.status, missing.content_type) == (404, "text/plain")
    assert await missing.text() == "404 page not found"
    wrong = await daemon.get("/api/chat")
    assert (wrong.status, wrong.headers["Allow"]) == (405, "POST")
    assert await wrong.text() == "405 method not allowed"
    assert (await daemon.get("/api/show")).status == 405
    assert (await daemon.post("/v1/images/generations", {})).status == 404
