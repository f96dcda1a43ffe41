"""Uploads to a registry with faults: what arrives is the blob, whatever the registry forgets or refuses."""

import hashlib
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from faulty_registry import digest_of

from ftd.errors import TransferError, Unauthorized
from ftd.names import ModelName
from ftd.registry.client import RegistryClient
from ftd.registry.manifest import Descriptor, build_manifest
from ftd.registry.store import Store

MakeClient = Callable[..., RegistryClient]
STEP = 100_000


@dataclass
class UploadServer:
    """One upload session in memory, with faults that count down, and a log of what was asked."""

    num_refusals: int = 0
    num_cuts: int = 0
    num_forgotten: int = 0
    num_lost_commits: int = 0
    num_lost_bytes: int = 0
    cut_at: int = -1
    keeps: int | None = None
    has_location: bool = True
    says_range: bool = True
    mounts: bool = False
    redirects: bool = False
    status: int = 0
    data: bytearray = field(default_factory=bytearray)
    blobs: dict[str, bytes] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    headers: dict[str, dict[str, str]] = field(default_factory=dict)
    elsewhere: dict[str, bytes] = field(default_factory=dict)
    commit_query: dict[str, str] = field(default_factory=dict)
    port: int = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.log.append(request.method)
        self.headers[request.method] = dict(request.headers)
        if request.path.startswith("/elsewhere/"):
            self.elsewhere[request.path] = await request.read()
            return web.Response(status=200)
        if self.status:
            return web.Response(status=self.status, text="no")
        action = {"HEAD": self.head, "POST": self.post, "GET": self.get, "PATCH": self.patch, "PUT": self.put}
        return await action[request.method](request)

    async def head(self, request: web.Request) -> web.StreamResponse:
        return web.Response(status=200 if request.path.rsplit("/", 1)[1] in self.blobs else 404)

    async def post(self, request: web.Request) -> web.StreamResponse:
        self.data.clear()
        self.log[-1] += f" {request.rel_url.raw_query_string}"
        if self.mounts and "mount" in request.query:
            return web.Response(status=201)
        return web.Response(status=202, headers={"Location": "/v2/library/m/blobs/uploads/1?state=a%2Fb"})

    async def get(self, request: web.Request) -> web.StreamResponse:
        del self.data[len(self.data) - self.num_lost_bytes :]
        self.num_lost_bytes = 0
        return web.Response(status=204, headers=self.where())

    def where(self) -> dict[str, str]:
        headers = {"Range": f"0-{max(0, len(self.data) - 1)}"} if self.says_range else {}
        return (
            {**headers, "Location": "/v2/library/m/blobs/uploads/1?state=a%2Fb"}
            if self.has_location
            else headers
        )

    async def patch(self, request: web.Request) -> web.StreamResponse:
        assert request.rel_url.raw_query_string == "state=a%2Fb"
        match = re.fullmatch(r"(\d+)-(\d+)", request.headers["Content-Range"])
        assert match is not None
        assert int(match[2]) + 1 - int(match[1]) == request.content_length
        if self.redirects:
            number = len(self.elsewhere)
            target = f"http://localhost:{self.port}/elsewhere/{number}"
            return web.Response(
                status=307, headers={"Location": target, "Docker-Upload-Location": str(request.url)}
            )
        if self.num_forgotten > 0:
            self.num_forgotten -= 1
            return web.Response(status=404)
        if self.num_refusals > 0:
            self.num_refusals -= 1
            return web.Response(status=416, headers={"Range": "0-77"})
        if int(match[1]) != len(self.data):
            return web.Response(status=416, headers=self.where())
        if self.num_cuts > 0:
            self.num_cuts -= 1
            self.data += await request.content.readexactly(30_000)
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        if len(self.data) == self.cut_at:
            self.cut_at = -1
            return web.Response(status=503)
        self.data += await request.read()
        if self.keeps is not None:
            del self.data[self.keeps :]
        return web.Response(status=202, headers=self.where())

    async def put(self, request: web.Request) -> web.StreamResponse:
        if "manifests" in request.path:
            return web.Response(status=201)
        assert request.rel_url.raw_query_string.startswith("state=a%2Fb&digest=sha256%3A")
        self.commit_query = dict(request.query)
        data = bytes(self.data) + b"".join(self.elsewhere.values())
        if digest_of(data) != request.query["digest"]:
            return web.Response(status=400, text="digest invalid")
        self.blobs[request.query["digest"]] = data
        if self.num_lost_commits > 0:
            self.num_lost_commits -= 1
            return web.Response(status=404)
        return web.Response(status=201)


@pytest.fixture
async def server() -> AsyncIterator[UploadServer]:
    server = UploadServer()
    app = web.Application(client_max_size=2**30)
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.port = runner.addresses[0][1]
    yield server
    await runner.cleanup()


@pytest.fixture
def push(server: UploadServer, store: Store, make_client: MakeClient, payload: bytes) -> Callable[..., Any]:
    """Return a function that pushes a model of one blob and returns the progress of it."""

    async def push(origin: str = "", **options: Any) -> list[int]:
        entry = Descriptor("t", *store.blobs.put(payload), origin)
        name = ModelName(f"127.0.0.1:{server.port}", "library", "m", "latest")
        store.write(name, build_manifest(entry, []))
        client = make_client(store, **options)
        lines = [line async for line in client.push(name, insecure=True, allow_loopback=True)]
        assert lines[-1] == {"status": "success"}
        return [line.get("completed", 0) for line in lines if "digest" in line]

    return push


async def test_parts_are_sent_in_order_and_committed(server: UploadServer, push: Any, payload: bytes) -> None:
    completed = await push()
    assert server.blobs == {digest_of(payload): payload}
    assert server.log == ["HEAD", "POST ", *["PATCH"] * 11, "PUT", "PUT"]
    assert server.headers["PATCH"]["X-Redirect-Uploads"] == "1"
    assert server.commit_query == {"state": "a/b", "digest": digest_of(payload)}
    assert (completed == sorted(completed), completed[-1]) == (True, len(payload))


async def test_after_a_416_the_status_is_asked_and_the_stale_range_is_not_believed(
    server: UploadServer, push: Any, payload: bytes
) -> None:
    server.num_refusals = 1
    await push()
    assert server.blobs == {digest_of(payload): payload}
    assert server.log[:5] == ["HEAD", "POST ", "PATCH", "GET", "PATCH"]


async def test_after_a_broken_link_the_upload_goes_on_where_the_registry_is(
    server: UploadServer, push: Any, payload: bytes
) -> None:
    server.num_cuts = 2
    completed = await push()
    assert server.blobs == {digest_of(payload): payload}
    assert completed == sorted(completed)
    # 30,000 bytes came with each cut, so the rest of 988,593 bytes goes in ten parts.
    assert server.log.count("PATCH") == 2 + 10


async def test_bytes_the_registry_lost_are_sent_again(
    server: UploadServer, push: Any, payload: bytes
) -> None:
    server.num_cuts, server.num_lost_bytes = 1, 20_000
    await push()
    assert server.blobs == {digest_of(payload): payload}


async def test_bytes_that_the_registry_lost_far_back_are_sent_again(
    server: UploadServer, push: Any, payload: bytes
) -> None:
    server.cut_at, server.num_lost_bytes = 900_000, 900_000
    await push()
    assert server.blobs == {digest_of(payload): payload}


@pytest.mark.parametrize("kept", [0, 1, 50_000])
async def test_a_registry_that_takes_parts_and_loses_them_is_an_error(
    kept: int, server: UploadServer, push: Any
) -> None:
    server.keeps = kept
    with pytest.raises(TransferError, match="max retries exceeded: registry"):
        await push()
    assert server.log.count("PATCH") < 10


async def test_a_forgotten_session_is_started_again(server: UploadServer, push: Any, payload: bytes) -> None:
    server.num_forgotten = 1
    await push()
    assert server.blobs == {digest_of(payload): payload}
    assert server.log[:5] == ["HEAD", "POST ", "PATCH", "HEAD", "POST "]


async def test_a_registry_that_forgets_every_session_is_an_error(server: UploadServer, push: Any) -> None:
    server.num_forgotten = 10**6
    with pytest.raises(TransferError, match="registry forgets uploads"):
        await push()


async def test_a_commit_whose_answer_was_lost_counts(server: UploadServer, push: Any) -> None:
    server.num_lost_commits = 1
    await push()
    assert server.log.count("POST ") == 1


@pytest.mark.parametrize(("says_range", "has_location"), [(False, True), (True, False), (False, False)])
async def test_headers_a_registry_leaves_out_are_not_needed(
    server: UploadServer, push: Any, payload: bytes, says_range: bool, has_location: bool
) -> None:
    server.says_range, server.has_location = says_range, has_location
    await push()
    assert server.blobs == {digest_of(payload): payload}


async def test_a_blob_of_another_model_of_the_registry_is_mounted(
    server: UploadServer, push: Any, payload: bytes
) -> None:
    server.mounts = True
    await push(origin=f"127.0.0.1:{server.port}/ns/base:8b")
    assert server.log == [
        "HEAD",
        f"POST mount={digest_of(payload).replace(':', '%3A')}&from=ns%2Fbase",
        "PUT",
    ]


@pytest.mark.parametrize("origin", ["", "elsewhere.example/ns/base", "not a name", "m:other"])
async def test_a_blob_from_elsewhere_is_not_mounted(server: UploadServer, push: Any, origin: str) -> None:
    await push(origin=origin)
    assert server.log[1] == "POST "


async def test_parts_go_elsewhere_if_told_to_and_carry_no_credentials(
    server: UploadServer, push: Any, payload: bytes
) -> None:
    server.redirects = True
    await push(allow_private_registries=("localhost",))
    assert b"".join(server.elsewhere.values()) == payload
    md5s = b"".join(
        hashlib.md5(payload[start : start + STEP]).digest() for start in range(0, len(payload), STEP)
    )
    assert server.commit_query["etag"] == f"{hashlib.md5(md5s).hexdigest()}-11"
    assert "Authorization" not in server.headers["PUT"]


async def test_parts_do_not_go_to_a_private_address(server: UploadServer, push: Any) -> None:
    server.redirects = True
    with pytest.raises(Exception, match="registry address is not allowed: localhost"):
        await push()
    assert server.elsewhere == {}


@pytest.mark.parametrize(
    ("status", "error"), [(403, Unauthorized), (500, TransferError), (413, TransferError)]
)
async def test_a_refusal_is_quoted(
    server: UploadServer, push: Any, status: int, error: type[Exception]
) -> None:
    server.status = status
    with pytest.raises(error, match=f"{status}"):
        await push()
