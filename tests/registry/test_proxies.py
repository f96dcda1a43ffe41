"""Proxies of the environment: which registries they are for, and a real one."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from yarl import URL

from ftd.errors import InvalidOption, TransferError
from ftd.registry.addresses import AddressPolicy
from ftd.registry.auth import Authorizer, SigningKey
from ftd.registry.connection import Connection, Limits, Source, TransientError, read_limited
from ftd.registry.proxies import proxy_of

PROXY = "http://proxy.example:3128"


@pytest.mark.parametrize(
    ("url", "variables", "proxy"),
    [
        ("https://registry.example/v2/", {}, None),
        ("https://registry.example/v2/", {"HTTPS_PROXY": PROXY}, PROXY),
        ("https://registry.example/v2/", {"HTTP_PROXY": PROXY}, None),
        ("http://registry.example/v2/", {"HTTP_PROXY": PROXY}, PROXY),
        ("https://registry.example/", {"https_proxy": PROXY, "HTTPS_PROXY": "http://other:1"}, PROXY),
        ("https://registry.example/", {"HTTPS_PROXY": "proxy.example:3128"}, PROXY),
        (
            "https://registry.example/",
            {"HTTPS_PROXY": "https://u:p@proxy.example"},
            "https://u:p@proxy.example",
        ),
        ("https://a.registry.example/", {"HTTPS_PROXY": PROXY, "NO_PROXY": "other,registry.example"}, None),
        ("https://registry.example:5000/", {"HTTPS_PROXY": PROXY, "no_proxy": "registry.example:5000"}, None),
        ("https://registry.example:5000/", {"HTTPS_PROXY": PROXY, "no_proxy": "registry.example:80"}, PROXY),
        ("https://registry.example/", {"HTTPS_PROXY": PROXY, "NO_PROXY": "*"}, None),
        ("http://localhost:5000/", {"HTTP_PROXY": PROXY}, None),
        ("http://127.0.0.1:5000/", {"HTTP_PROXY": PROXY}, None),
        ("http://[::1]:5000/", {"HTTP_PROXY": PROXY}, None),
    ],
)
def test_which_registries_have_one(url: str, variables: dict[str, str], proxy: str | None) -> None:
    assert proxy_of(URL(url), variables) == (None if proxy is None else URL(proxy))


@pytest.mark.parametrize(
    "text", ["socks5://u:secret@proxy.example:1080", "http://", "http://u:secret@host:port"]
)
def test_what_is_no_proxy_over_http_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="HTTPS_PROXY") as caught:
        proxy_of(URL("https://registry.example/"), {"HTTPS_PROXY": text})
    assert "secret" not in f"{caught.value} {caught.value.hint}"
    assert proxy_of(URL("http://registry.example/"), {"HTTPS_PROXY": text}) is None


class Proxy:
    """A proxy that answers for every host, with what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.status = 200
        self.port = 0

    async def answer(self, request: web.BaseRequest) -> web.Response:
        self.asked.append(request.raw_path)
        return web.Response(status=self.status, text="from the proxy")


@pytest.fixture
async def proxy(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Proxy]:
    found = Proxy()
    runner = web.ServerRunner(web.Server(found.answer))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    found.port = runner.addresses[0][1]
    # By a name, whose address the policy would refuse
    monkeypatch.setenv("HTTP_PROXY", f"http://localhost:{found.port}")
    yield found
    await runner.cleanup()


async def fetch(folder: Path, limits: Limits, scheme: str = "http") -> bytes:
    """Ask a registry that no name server knows."""
    source = Source(URL(f"{scheme}://registry.invalid/"), AddressPolicy())
    async with (
        Connection(source, Authorizer(SigningKey(folder), {}), limits, 1) as connection,
        connection.request("GET", source.url("/v2/")) as response,
    ):
        return await read_limited(response, 1000)


async def test_requests_go_through_it(proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await fetch(tmp_path, Limits()) == b"from the proxy"
    assert proxy.asked == ["http://registry.invalid/v2/"]
    monkeypatch.setenv("NO_PROXY", ".invalid")
    with pytest.raises(TransferError, match=r"registry registry\.invalid"):
        await fetch(tmp_path, Limits())
    assert len(proxy.asked) == 1


async def test_one_that_is_down_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with pytest.raises(TransientError, match=r"no proxy answers at 127\.0\.0\.1:1"):
        await fetch(tmp_path, Limits())


async def test_one_that_asks_for_a_password_says_where_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    monkeypatch.setenv("HTTPS_PROXY", f"http://me:secret@127.0.0.1:{port}")
    async with server:
        with pytest.raises(TransferError, match=r"the proxy refuses registry\.invalid: 407") as caught:
            await fetch(tmp_path, Limits(), "https")
    assert "USER:PASSWORD" in str(caught.value.hint) and "secret" not in str(caught.value)
    assert asked[0].startswith(b"CONNECT registry.invalid:443 ")
    assert b"Proxy-Authorization: Basic bWU6c2VjcmV0\r\n" in asked[0]
