"""A registry that means harm: each reply is an error, nothing is written, memory and time stay small."""

import asyncio
import functools
import gzip
import os
import resource
import socket
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from faulty_registry import FaultyRegistry, digest_of, files_in, manifest_of

from ftd.config import RegistryConfig
from ftd.errors import Forbidden, FtdError, InsufficientSpace, TransferError
from ftd.names import ModelName
from ftd.registry.client import RegistryClient
from ftd.registry.connection import Limits
from ftd.registry.store import Store

Pull = Callable[..., Any]
MANIFEST_V2 = "application/vnd.docker.distribution.manifest.v2+json"


@pytest.fixture
async def registry() -> AsyncIterator[FaultyRegistry]:
    registry = FaultyRegistry()
    await registry.start()
    yield registry
    await registry.stop()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "models")


@pytest.fixture
def pull(store: Store, tmp_path: Path) -> Pull:
    """Return a function that pulls into the store and returns the last status object."""

    async def pull(name: ModelName, insecure: bool = True, allow_loopback: bool = True) -> dict[str, Any]:
        config = RegistryConfig(models_dir=store.models_dir)
        client = RegistryClient(
            store, config, key_dir=tmp_path / "keys", limits=Limits(attempts=2, backoff_s=0.0, connect_s=5.0)
        )
        return [line async for line in client.pull(name, insecure, allow_loopback)][-1]

    return pull


def everything_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "digest",
    [
        "sha256:../../x", "sha256:" + "../" * 21 + "x", "../../../../x", "sha256:" + "A" * 64, "sha256:abc",
        "sha512:" + "a" * 128, "sha256-" + "a" * 64, "sha256:" + "a" * 65, "", "sha256:" + "a" * 63 + "\0",
    ],
)  # fmt: skip
@pytest.mark.parametrize("where", ["config", "layer"])
async def test_a_digest_that_is_a_path_is_refused_before_any_blob_is_asked_for(
    registry: FaultyRegistry, pull: Pull, tmp_path: Path, digest: str, where: str
) -> None:
    escaped = digest.replace("\0", "\\u0000").encode()
    raw = manifest_of(b"config", [b"layer"]).replace(digest_of(where.encode()).encode(), escaped)
    with pytest.raises(TransferError, match="pull model manifest: invalid manifest: invalid digest format"):
        await pull(registry.add_manifest(raw))
    assert registry.blob_requests() == []
    assert everything_below(tmp_path) == set()


async def test_ten_terabytes_are_refused_before_the_first_byte(
    registry: FaultyRegistry, pull: Pull, tmp_path: Path
) -> None:
    raw = manifest_of(b"config", [b"layer"]).replace(b'"size": 5', f'"size": {10**13}'.encode())
    started_s = time.process_time()
    with pytest.raises(
        InsufficientSpace, match=rf"10 TB \({10**13 + 6} bytes\) needed, .*\(\d+ bytes\) free"
    ):
        await pull(registry.add_manifest(raw))
    assert time.process_time() - started_s < 1
    assert registry.blob_requests() == []
    assert everything_below(tmp_path) == set()


@pytest.mark.parametrize("size", [2**63 - 1, 2**63, -1, 10**30])
async def test_absurd_sizes_are_refused(
    registry: FaultyRegistry, pull: Pull, tmp_path: Path, size: int
) -> None:
    raw = manifest_of(b"config", [b"layer"]).replace(b'"size": 5', f'"size": {size}'.encode())
    with pytest.raises(TransferError):
        await pull(registry.add_manifest(raw))
    assert everything_below(tmp_path) == set()


@functools.cache
def bomb(num_bytes: int) -> bytes:
    return gzip.compress(bytes(num_bytes), 1)


@pytest.mark.parametrize("status", [200, 500, 401])
@pytest.mark.parametrize("says_so", [True, False])
async def test_a_gzip_bomb_is_never_unpacked(
    registry: FaultyRegistry, pull: Pull, status: int, says_so: bool
) -> None:
    body = bomb(200 * 2**20)
    headers = {"Content-Encoding": "gzip"} if says_so else {}
    headers |= (
        {"WWW-Authenticate": f'Bearer realm="http://127.0.0.1:{registry.port}/token"'}
        if status == 401
        else {}
    )
    token = web.Response(body=body, headers={"Content-Encoding": "gzip"})
    registry.before = lambda request: (
        token if request.path == "/token" else web.Response(status=status, body=body, headers=headers)
    )
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(FtdError):
        await pull(ModelName(f"127.0.0.1:{registry.port}", "library", "m", "latest"))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 50 * 1024


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(status=200 if "m" in request.path else 500)
    response.content_type = MANIFEST_V2
    await response.prepare(request)
    while True:
        await response.write(b" " * 65536)


async def test_an_endless_manifest_is_cut_off(pull: Pull) -> None:
    app = web.Application()
    app.router.add_get("/{path:.*}", endless)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    with pytest.raises(TransferError, match="longer than 4194304 bytes"):
        await pull(ModelName(f"127.0.0.1:{runner.addresses[0][1]}", "library", "m", "latest"))
    await runner.cleanup()


async def test_an_endless_blob_is_cut_off_at_its_size(
    registry: FaultyRegistry, store: Store, pull: Pull
) -> None:
    name = registry.add(b"config", [b"layer"])
    registry.blobs[digest_of(b"layer")] = b"layer" + bytes(10**6)
    registry.faults.ignore_range = True
    with pytest.raises(TransferError):
        await pull(name)
    assert [file for file in files_in(store.blobs.folder) if digest_of(b"layer")[7:] in file] == []


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"null", b"[]", b"{}", b"<html>", b"\xff\xfe", b"[" * 10**6, b'{"config":' * 10**5,
        manifest_of(b"{}", []).replace(b'"schemaVersion": 2', b'"schemaVersion": 1'),
    ],
)  # fmt: skip
async def test_a_manifest_that_is_none_is_refused(
    registry: FaultyRegistry, pull: Pull, tmp_path: Path, raw: bytes
) -> None:
    with pytest.raises(TransferError, match="pull model manifest"):
        await pull(registry.add_manifest(raw))
    assert everything_below(tmp_path) == set()


class Listener:
    """A port that counts who connects."""

    def __init__(self, host: str) -> None:
        self.socket = socket.create_server((host, 0))
        self.socket.setblocking(False)
        self.port = self.socket.getsockname()[1]

    def num_connections(self) -> int:
        count = 0
        while True:
            try:
                self.socket.accept()[0].close()
            except BlockingIOError:
                return count
            count += 1


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "127.1", "2130706433", "0x7f000001"])
@pytest.mark.parametrize("is_open", [True, False])
async def test_no_connection_reaches_this_machine_and_open_and_closed_ports_look_alike(
    pull: Pull, host: str, is_open: bool
) -> None:
    listener = Listener("127.0.0.1")
    port = listener.port
    if not is_open:
        listener.socket.close()
    for insecure in (False, True):
        with pytest.raises(FtdError) as caught:
            await pull(ModelName(f"{host}:{port}", "x", "y", "z"), insecure, allow_loopback=False)
        refusals = ("plain http is not allowed", "registry address is not allowed", "not a registry address")
        assert caught.value.message.startswith(refusals)
    if is_open:
        assert listener.num_connections() == 0
        listener.socket.close()


@pytest.mark.parametrize(
    "target", ["http://127.0.0.1:{other}/x", "http://localhost:{other}/x", "http://[::1]:{other}/x"]
)
@pytest.mark.parametrize("what", ["manifest", "blob"])
async def test_a_redirect_into_this_machine_connects_to_nothing(
    registry: FaultyRegistry, pull: Pull, target: str, what: str
) -> None:
    listener = Listener("127.0.0.1")
    location = target.format(other=listener.port)
    name = registry.add(b"{}", [b"layer"])
    registry.before = lambda request: (
        web.Response(status=307, headers={"Location": location}) if f"/{what}s/" in request.path else None
    )
    with pytest.raises(Forbidden, match="registry address is not allowed"):
        await pull(name)
    assert listener.num_connections() == 0
    listener.socket.close()


async def test_a_client_that_leaves_at_any_moment_leaves_no_task_and_no_lock(
    registry: FaultyRegistry, store: Store, pull: Pull
) -> None:
    blob = os.urandom(200_000)
    name = registry.add(b"{}", [blob])
    for num_turns in range(0, 60, 4):
        task = asyncio.create_task(pull(name))
        for _ in range(num_turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not any("_Flight" in repr(found) for found in asyncio.all_tasks())
        # A pull that is left while its manifest is written may still be published, but then it is whole.
        listed = [entry for model in store.list() for entry in model.manifest.blobs]
        assert all(store.blobs.size(entry.digest) == entry.size for entry in listed)
        assert not store.blobs.has(digest_of(blob)) or store.blobs.verify(digest_of(blob))
    assert await pull(name) == {"status": "success"}
