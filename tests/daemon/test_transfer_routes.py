"""Blobs, pull and push on a live daemon, against ftd's own registry on a loopback port."""

import asyncio
import errno
import hashlib
import json

import pytest
from aiohttp import web
from live_daemon import running

from ftd.names import parse_name
from ftd.registry.blobs import BlobWriter
from ftd.registry.server import make_app
from ftd.registry.store import Store

DATA = b"x" * 100_000
DIGEST = f"sha256:{hashlib.sha256(DATA).hexdigest()}"


@pytest.fixture
async def daemon(tmp_path):
    async with running(tmp_path) as daemon:
        yield daemon


@pytest.fixture
async def registry(tmp_path):
    """host:port of an empty registry."""
    runner = web.AppRunner(make_app(Store(tmp_path / "registry")), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
    await runner.cleanup()


async def send_blob(daemon, digest, data):
    response = await daemon.session.post(f"{daemon.url}/api/blobs/{digest}", data=data)
    return response.status, await response.text()


async def test_blob_is_created_once(daemon):
    assert (await daemon.session.head(f"{daemon.url}/api/blobs/{DIGEST}")).status == 404
    assert await send_blob(daemon, DIGEST, DATA) == (201, "")
    assert await send_blob(daemon, DIGEST.replace(":", "-"), DATA) == (200, "")
    assert (await daemon.session.head(f"{daemon.url}/api/blobs/{DIGEST}")).status == 200
    assert daemon.store.blobs.read(DIGEST) == DATA


async def test_wrong_bytes_leave_nothing(daemon):
    before = set(daemon.store.blobs.folder.iterdir())
    status, text = await send_blob(daemon, DIGEST, DATA + b"!")
    assert status == 400
    assert json.loads(text)["error"].startswith(f'digest mismatch, expected "{DIGEST}", got "sha256:')
    assert set(daemon.store.blobs.folder.iterdir()) == before


async def test_a_full_disk_is_said_and_leaves_nothing(daemon, monkeypatch):
    def full(writer, view):
        raise OSError(errno.ENOSPC, "No space left on device")

    before = set(daemon.store.blobs.folder.iterdir())
    monkeypatch.setattr(BlobWriter, "_append", full)
    status, text = await send_blob(daemon, DIGEST, DATA)
    body = {"model": "brief", "from": "tiny", "system": "Be brief."}
    for answer in (json.loads(text), await daemon.json("/api/create", body, status=507)):
        assert answer["error"] == "no space left on the disk of the model store"
        assert "FTD_MODELS" in answer["hint"]
    assert status == 507
    assert set(daemon.store.blobs.folder.iterdir()) == before


@pytest.mark.parametrize(
    "digest", ["sha256:abc", "sha256:" + "A" * 64, "sha512:" + "a" * 64, "sha256:..%2F..%2Fx", "a" * 64]
)
async def test_bad_digests(daemon, digest):
    status, text = await send_blob(daemon, digest, b"x")
    assert status == 400 and "invalid digest format" in text
    assert (await daemon.session.head(f"{daemon.url}/api/blobs/{digest}")).status == 400


async def test_client_that_leaves_in_an_upload_leaves_nothing(daemon):
    before = set(daemon.store.blobs.folder.iterdir())
    port = int(daemon.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /api/blobs/{DIGEST} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
    writer.write(head.encode() + DATA[:5000])
    await writer.drain()
    while set(daemon.store.blobs.folder.iterdir()) == before:  # noqa: ASYNC110 -- another task's file
        await asyncio.sleep(0.001)
    writer.close()
    await writer.wait_closed()
    while set(daemon.store.blobs.folder.iterdir()) != before:  # noqa: ASYNC110 -- another task's file
        await asyncio.sleep(0.001)
    assert await reader.read() == b""


async def statuses(daemon, path, body):
    response = await daemon.post(path, body)
    assert (response.status, response.content_type) == (200, "application/x-ndjson")
    return [json.loads(line) for line in (await response.text()).splitlines()]


async def test_push_then_pull_back_then_run(daemon, registry):
    name = f"{registry}/library/tiny:latest"
    await daemon.post("/api/copy", {"source": "tiny", "destination": name})
    pushed = await statuses(daemon, "/api/push", {"model": name, "insecure": True})
    assert pushed[0] == {"status": "retrieving manifest"} and pushed[-1] == {"status": "success"}
    digest = daemon.store.read(parse_name("tiny")).digest
    for model in ("tiny", name):
        await daemon.session.delete(daemon.url + "/api/delete", json={"model": model})
    pulled = await statuses(daemon, "/api/pull", {"name": name, "insecure": True})
    assert pulled[0] == {"status": "pulling manifest"}
    assert [line["status"] for line in pulled[-3:]] == [
        *("verifying sha256 digest", "writing manifest", "success"),
    ]
    assert daemon.store.read(parse_name(name)).digest == digest
    answer = await daemon.json("/api/generate", {"model": name, "prompt": "x", "stream": False})
    assert answer["response"] == "Hello, world"
    whole = await daemon.post("/api/pull", {"model": name, "insecure": True, "stream": False})
    assert whole.headers["Content-Type"] == "application/json"
    assert json.loads(await whole.text()) == {"status": "success"}


async def test_failed_pull_is_a_line_in_a_stream_and_a_status_without(daemon, registry):
    body = {"model": f"{registry}/library/nope", "insecure": True}
    *_, last = await statuses(daemon, "/api/pull", body)
    assert "error" in last
    response = await daemon.post("/api/pull", body | {"stream": False})
    assert response.status >= 400 and "error" in json.loads(await response.text())


@pytest.mark.parametrize(
    ("path", "body", "error"),
    [
        ("/api/pull", {}, "invalid model name"),
        ("/api/pull", {"model": "../../etc/passwd"}, "invalid model name"),
        ("/api/push", {}, "model is required"),
        ("/api/create", {"model": "x", "files": {"../x": DIGEST}}, "file path must be relative"),
        ("/api/create", {"model": "x", "files": {"x": "sha256:1"}}, "invalid digest format"),
    ],
)
async def test_refused_before_the_stream(daemon, path, body, error):
    response = await daemon.post(path, body)
    assert response.status == 400
    assert error in json.loads(await response.text())["error"]


async def test_create_from_a_model_with_a_system_text(daemon):
    body = {"model": "brief", "from": "tiny", "system": "Be brief.", "parameters": {"num_predict": 2}}
    lines = await statuses(daemon, "/api/create", body)
    assert lines[-1] == {"status": "success"}
    answer = await daemon.json("/api/generate", {"model": "brief", "prompt": "x", "stream": False})
    assert answer["response"] == "He"
    whole = await daemon.post("/api/create", {**body, "model": "again", "stream": False})
    assert json.loads(await whole.text()) == {"status": "success"}
