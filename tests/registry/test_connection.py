"""HTTP to a registry: credentials stay where they belong, redirects are checked, answers are bounded."""

import gzip
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from faulty_registry import FaultyRegistry
from yarl import URL

from ftd.errors import Forbidden, TransferError, Unauthorized
from ftd.names import parse_name
from ftd.registry.addresses import AddressPolicy
from ftd.registry.auth import Authorizer, SigningKey
from ftd.registry.connection import (
    UNREACHABLE_HINT,
    Connection,
    Limits,
    Source,
    TransientError,
    read_limited,
    retrying,
)
from ftd.registry.store import Store

Get = Callable[..., Any]
LIMITS = Limits(attempts=3, backoff_s=0.0)


@pytest.fixture
async def connect(registry: FaultyRegistry, tmp_path: Path) -> AsyncIterator[Callable[..., Connection]]:
    opened = []

    def connect(
        credentials: dict[str, str] | None = None, allowed: tuple[str, ...] = ("127.0.0.1",)
    ) -> Connection:
        source = Source(URL(f"http://127.0.0.1:{registry.port}/"), AddressPolicy(allowed))
        opened.append(Connection(source, Authorizer(SigningKey(tmp_path), credentials or {}), LIMITS, 1))
        return opened[-1]

    yield connect
    for connection in opened:
        await connection.__aexit__(None, None, None)


async def fetch(connection: Connection, path: str, **options: Any) -> tuple[int, bytes]:
    async with connection.request("GET", connection.source.url(path), **options) as response:
        return response.status, await read_limited(response, 1000)


def challenge_of(registry: FaultyRegistry, realm: str = "") -> dict[str, str]:
    realm = realm or f"http://127.0.0.1:{registry.port}/token"
    return {"WWW-Authenticate": f'Bearer realm="{realm}",service="s",scope="repository:a/b:pull"'}


def authorization_in(registry: FaultyRegistry, path: str) -> list[str | None]:
    return [headers.get("Authorization") for _, found, headers in registry.requests if found.startswith(path)]


async def test_every_request_says_who_asks_and_takes_no_encoding(
    registry: FaultyRegistry, connect: Callable[..., Connection]
) -> None:
    await fetch(connect(), "/x")
    headers = registry.requests[0][2]
    assert headers["Accept-Encoding"] == "identity"
    assert headers["User-Agent"].startswith("ollama/")
    assert " ftd/" in headers["User-Agent"]


async def test_a_challenge_is_answered_with_a_token_that_is_then_kept(
    registry: FaultyRegistry, connect: Callable[..., Connection]
) -> None:
    def guard(request: web.Request) -> web.Response | None:
        if request.path == "/token":
            return web.json_response({"token": "secret"})
        if request.headers.get("Authorization") != "Bearer secret":
            return web.Response(status=401, headers=challenge_of(registry))
        return web.Response(text="in")

    registry.before = guard
    connection = connect()
    assert [await fetch(connection, path) for path in ("/a", "/b")] == [(200, b"in")] * 2
    assert authorization_in(registry, "/a") == [None, "Bearer secret"]
    assert authorization_in(registry, "/b") == ["Bearer secret"]
    assert len(authorization_in(registry, "/token?nonce=")) == 1


async def test_a_token_that_expired_is_replaced_once(
    registry: FaultyRegistry, connect: Callable[..., Connection]
) -> None:
    tokens = iter(["old", "new", "newer"])

    def guard(request: web.Request) -> web.Response | None:
        if request.path == "/token":
            return web.json_response({"token": next(tokens)})
        good = "Bearer old" if request.path == "/first" else "Bearer new"
        refused = web.Response(status=401, headers=challenge_of(registry))
        return web.Response(text="in") if request.headers.get("Authorization") == good else refused

    registry.before = guard
    connection = connect()
    assert [await fetch(connection, path) for path in ("/first", "/second")] == [(200, b"in")] * 2
    with pytest.raises(Unauthorized, match="unauthorized: access denied"):
        await fetch(connection, "/first")


async def test_a_signed_request_that_is_refused_is_repeated_without_a_name(
    registry: FaultyRegistry, connect: Callable[..., Connection]
) -> None:
    def guard(request: web.Request) -> web.Response | None:
        if request.path == "/token":
            if "Authorization" in request.headers:
                return web.Response(status=400)
            return web.json_response({"access_token": "public"})
        has_token = request.headers.get("Authorization") == "Bearer public"
        return (
            web.Response(text="in") if has_token else web.Response(status=401, headers=challenge_of(registry))
        )

    registry.before = guard
    assert await fetch(connect(), "/a") == (200, b"in")


async def test_user_and_password_are_sent_only_when_asked_for(
    registry: FaultyRegistry, connect: Callable[..., Connection]
) -> None:
    def guard(request: web.Request) -> web.Response | None:
        good = request.headers.get("Authorization") == "Basic dTpw"
        return web.Response(status=200 if good else 401, headers={"WWW-Authenticate": 'Basic realm="r"'})

    registry.before = guard
    assert (await fetch(connect({f"127.0.0.1:{registry.port}": "dTpw"}), "/a"))[0] == 200
    assert authorization_in(registry, "/a") == [None, "Basic dTpw"]
    with pytest.raises(Unauthorized, match="asks for a user and password"):
        await fetch(connect(), "/b")


async def test_a_token_does_not_follow_a_redirect_to_another_host(
    registry: FaultyRegistry, connect: Callable[..., Connection]
) -> None:
    def guard(request: web.Request) -> web.Response | None:
        if request.path == "/token":
            return web.json_response({"token": "secret"})
        if request.path == "/landed":
            return web.Response(text="landed")
        if "Authorization" not in request.headers:
            return web.Response(status=401, headers=challenge_of(registry))
        return web.Response(status=307, headers={"Location": f"http://localhost:{registry.port}/landed"})

    registry.before = guard
    assert await fetch(connect(allowed=("127.0.0.1", "localhost")), "/a") == (200, b"landed")
    assert authorization_in(registry, "/landed") == [None]


async def test_another_host_cannot_ask_for_credentials(
    registry: FaultyRegistry, connect: Callable[..., Connection]
) -> None:
    def guard(request: web.Request) -> web.Response | None:
        if request.path == "/landed":
            return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="r"'})
        return web.Response(status=307, headers={"Location": f"http://localhost:{registry.port}/landed"})

    registry.before = guard
    credentials = {"localhost": "dTpw", "127.0.0.1": "dTpw"}
    assert (await fetch(connect(credentials, ("127.0.0.1", "localhost")), "/a"))[0] == 401
    assert authorization_in(registry, "/") == [None, None]


async def test_a_realm_on_another_host_is_not_called(
    registry: FaultyRegistry, connect: Callable[..., Connection]
) -> None:
    realm = f"http://localhost:{registry.port}/token"
    registry.before = lambda request: web.Response(status=401, headers=challenge_of(registry, realm))
    with pytest.raises(TransferError, match="does not match original host"):
        await fetch(connect(allowed=("127.0.0.1", "localhost")), "/a")
    assert authorization_in(registry, "/token") == []


async def test_a_redirect_to_a_private_address_is_not_followed(
    registry: FaultyRegistry, connect: Callable[..., Connection]
) -> None:
    for target in (f"http://localhost:{registry.port}/b", "http://169.254.169.254/b", "http://[::1]/b"):
        registry.before = lambda request, target=target: web.Response(
            status=302, headers={"Location": target}
        )
        with pytest.raises(Forbidden, match="registry address is not allowed"):
            await fetch(connect(), "/a")
    assert authorization_in(registry, "/b") == []


@pytest.mark.parametrize("target", ["file:///etc/passwd", "gopher://x/", "ftp://127.0.0.1/"])
async def test_a_redirect_to_another_scheme_is_not_followed(
    registry: FaultyRegistry, connect: Callable[..., Connection], target: str
) -> None:
    registry.before = lambda request: web.Response(status=302, headers={"Location": target})
    with pytest.raises(TransferError, match="not a registry address"):
        await fetch(connect(), "/a")


async def test_redirects_end(registry: FaultyRegistry, connect: Callable[..., Connection]) -> None:
    registry.before = lambda request: web.Response(status=302, headers={"Location": "/again"})
    with pytest.raises(TransferError, match="too many redirects: 10"):
        await fetch(connect(), "/a")
    assert len(registry.requests) == 11


async def test_a_redirect_does_not_drop_the_encryption(connect: Callable[..., Connection]) -> None:
    with pytest.raises(TransferError, match="redirect from https to http"):
        connect().redirected(URL("https://r.example/a"), "http://r.example/a")
    assert (
        str(connect().redirected(URL("https://r.example/a/b"), "c?x=1%2F2"))
        == "https://r.example/a/c?x=1%2F2"
    )


async def test_an_answer_is_cut_off_at_its_limit(
    registry: FaultyRegistry, connect: Callable[..., Connection]
) -> None:
    registry.before = lambda request: web.Response(body=bytes(1001))
    with pytest.raises(TransferError, match="longer than 1000 bytes"):
        await fetch(connect(), "/a")
    registry.before = lambda request: web.Response(body=bytes(1000))
    assert await fetch(connect(), "/a") == (200, bytes(1000))


async def test_an_encoding_is_refused_and_not_unpacked(
    registry: FaultyRegistry, connect: Callable[..., Connection]
) -> None:
    body = gzip.compress(bytes(10**6))
    registry.before = lambda request: web.Response(body=body, headers={"Content-Encoding": "gzip"})
    with pytest.raises(TransferError, match="encoding nobody asked for: gzip"):
        await fetch(connect(), "/a")


async def test_retrying_gives_up_after_its_attempts_and_passes_other_errors() -> None:
    tries: list[int] = []

    async def fail() -> None:
        tries.append(1)
        raise TransientError("gone") if len(tries) < 4 else TransferError("never reached")

    with pytest.raises(TransferError, match="max retries exceeded: gone"):
        await retrying(LIMITS, fail)
    with pytest.raises(TransferError, match="never reached"):
        await retrying(LIMITS, fail)
    assert len(tries) == 4


@pytest.mark.parametrize(("code", "num_tries"), [(socket.EAI_NONAME, 1), (socket.EAI_AGAIN, 3)])
async def test_a_host_that_does_not_exist_is_asked_for_once(
    pull: Get, store: Store, monkeypatch: pytest.MonkeyPatch, code: int, num_tries: int
) -> None:
    looked_up: list[str] = []

    def look_up(host: str, *_: Any, **__: Any) -> None:
        looked_up.append(host)
        raise socket.gaierror(code, "as the system says")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with pytest.raises(
        TransferError, match=r"registry registry\.invalid: .*\[as the system says\]"
    ) as caught:
        await pull(
            store, parse_name("registry.invalid/library/m"), allow_private_registries=("registry.invalid",)
        )
    assert looked_up == ["registry.invalid"] * num_tries
    assert caught.value.message.startswith("max retries exceeded: ") == (num_tries > 1)
    assert caught.value.hint == UNREACHABLE_HINT


def test_pauses_double() -> None:
    assert [Limits().pause_s(failures) for failures in (1, 2, 3)] == [1.0, 2.0, 4.0]


async def test_one_that_speaks_plain_http_is_told_from_one_that_is_away(
    registry: FaultyRegistry, tmp_path: Path
) -> None:
    source = Source(URL(f"https://127.0.0.1:{registry.port}/"), AddressPolicy(("127.0.0.1",)))
    async with Connection(source, Authorizer(SigningKey(tmp_path), {}), LIMITS, 1) as connection:
        with pytest.raises(TransferError, match=r"registry 127\.0\.0\.1 does not speak TLS") as caught:
            await fetch(connection, "/v2/")
    assert not isinstance(caught.value, TransientError), "asking again helps nobody"
    assert caught.value.hint == "--insecure reaches one that speaks plain HTTP"
