"""Both ways with Debian's docker-registry (CNCF distribution) over plain HTTP: an implementation not ours."""

import asyncio
import os
import random
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from faulty_registry import digest_of

from ftd.names import ModelName
from ftd.registry.client import RegistryClient
from ftd.registry.connection import Limits
from ftd.registry.manifest import Descriptor, build_manifest
from ftd.registry.store import Store

BINARY = shutil.which("docker-registry", path=f"{os.environ.get('PATH', '')}:/usr/bin")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        BINARY is None, reason="docker-registry is not installed: apt-get install docker-registry"
    ),
]
CONFIG = """version: 0.1
storage:
  filesystem:
    rootdirectory: {folder}
http:
  addr: 127.0.0.1:{port}
"""
BLOB = random.Random(11).randbytes(20 * 2**20 + 3)
FTD_CONFIG = "application/vnd.ftd.config.v1+json"
FTD_WEIGHTS = "application/vnd.ftd.weights.dense.v1"


@pytest.fixture
async def port(tmp_path: Path, unused_tcp_port: int) -> AsyncIterator[int]:
    """A running docker-registry over an empty folder."""
    file = tmp_path / "config.yml"
    file.write_text(CONFIG.format(folder=tmp_path / "registry", port=unused_tcp_port))
    child = await asyncio.create_subprocess_exec(
        str(BINARY), "serve", str(file), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    assert child.stderr is not None
    async for line in child.stderr:
        if b"listening on" in line:
            break
    rest = asyncio.create_task(child.stderr.read())
    yield unused_tcp_port
    child.terminate()
    await child.wait()
    await rest


@pytest.fixture
def transfer(make_client: Callable[..., RegistryClient]) -> Callable[..., Any]:
    """Return a function that pushes or pulls and returns the last status object."""

    async def transfer(verb: str, store: Store, name: ModelName) -> dict[str, Any]:
        limits = Limits(attempts=2, backoff_s=0.0, stream_bytes=2**20, upload_part_bytes=6 * 2**20)
        run = getattr(make_client(store, limits), verb)
        return [line async for line in run(name, insecure=True, allow_loopback=True)][-1]

    return transfer


def add_model(store: Store, name: ModelName, origin: str = "") -> None:
    config = Descriptor(FTD_CONFIG, *store.blobs.put(b'{"format":"ftw"}'))
    layers = [Descriptor(FTD_WEIGHTS, *store.blobs.put(BLOB), origin), Descriptor("t", *store.blobs.put(b""))]
    store.write(name, build_manifest(config, layers))


async def test_a_model_goes_there_and_comes_back_byte_for_byte(
    port: int, store: Store, tmp_path: Path, transfer: Any
) -> None:
    name = ModelName(f"127.0.0.1:{port}", "library", "m", "8b")
    add_model(store, name)
    assert await transfer("push", store, name) == {"status": "success"}
    elsewhere = Store(tmp_path / "elsewhere")
    assert await transfer("pull", elsewhere, name) == {"status": "success"}
    assert elsewhere.read(name).raw == store.read(name).raw
    assert elsewhere.blobs.verify(digest_of(BLOB))
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"http://127.0.0.1:{port}/v2/library/m/tags/list") as found,
    ):
        assert await found.json() == {"name": "library/m", "tags": ["8b"]}


async def test_a_second_model_mounts_the_blob_it_shares(port: int, store: Store, transfer: Any) -> None:
    first = ModelName(f"127.0.0.1:{port}", "library", "first", "latest")
    second = ModelName(f"127.0.0.1:{port}", "ns", "second", "latest")
    add_model(store, first)
    add_model(store, second, first.display)
    for name in (first, second):
        assert await transfer("push", store, name) == {"status": "success"}
    url = f"http://127.0.0.1:{port}/v2/ns/second/blobs/{digest_of(BLOB)}"
    async with aiohttp.ClientSession() as http, http.head(url) as found:
        assert (found.status, found.content_length) == (200, len(BLOB))


async def test_what_it_holds_can_be_served_by_ours_too(
    port: int, served: tuple[Store, int], store: Store, transfer: Any
) -> None:
    """The same image, copied request by request from there to our server with a client that is not ours."""
    name = ModelName(f"127.0.0.1:{port}", "library", "m", "latest")
    add_model(store, name)
    await transfer("push", store, name)
    there, here = f"http://127.0.0.1:{port}/v2/library/m", f"http://127.0.0.1:{served[1]}/v2/library/m"
    accept = {"Accept": store.read(name).media_type}
    async with aiohttp.ClientSession() as http:
        async with http.get(f"{there}/manifests/latest", headers=accept) as response:
            raw = await response.read()
        for entry in store.read(name).blobs:
            async with http.get(f"{there}/blobs/{entry.digest}") as response:
                data = await response.read()
            async with http.post(f"{here}/blobs/uploads/") as response:
                location = response.headers["Location"]
            for start in range(0, len(data), 7 * 2**20):
                async with http.patch(location, data=iter_bytes(data[start : start + 7 * 2**20])) as response:
                    location = response.headers["Location"]
            async with http.put(location, params={"digest": entry.digest}) as response:
                assert response.status == 201
        async with http.put(
            f"{here}/manifests/latest", data=raw, headers={"Content-Type": accept["Accept"]}
        ) as response:
            assert response.status == 201
    assert served[0].list()[0].manifest.raw == store.read(name).raw
    assert served[0].blobs.verify(digest_of(BLOB))


async def iter_bytes(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), 2**20):
        yield data[start : start + 2**20]
