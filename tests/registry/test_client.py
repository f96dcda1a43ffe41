"""Pull and push: the exact status objects of Ollama, in order, and what each failure says."""

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import Any

import pytest
from faulty_registry import MANIFEST_V2, FaultyRegistry, digest_of, files_in, ftw_config, manifest_of

from ftd.errors import (
    BlobNotFound,
    DamagedBlob,
    Forbidden,
    FtdError,
    InvalidName,
    InvalidRequest,
    ModelNotFound,
    TransferError,
)
from ftd.names import ModelName, parse_name
from ftd.registry.client import RegistryClient, parse_chunk_hashes
from ftd.registry.download import ChunkHashes
from ftd.registry.manifest import Descriptor, build_manifest, parse_manifest
from ftd.registry.store import Store

Pull = Callable[..., Any]
MakeClient = Callable[..., RegistryClient]
Served = tuple[Store, int]


def steps_of(lines: list[dict[str, Any]]) -> list[str]:
    """Return the statuses with runs of the same status shortened to one."""
    statuses = [line["status"] for line in lines]
    return [status for index, status in enumerate(statuses) if statuses[index - 1 : index] != [status]]


def short(data: bytes) -> str:
    return digest_of(data)[7:19]


async def push(client: RegistryClient, name: ModelName) -> list[dict[str, Any]]:
    return [line async for line in client.push(name, insecure=True, allow_loopback=True)]


def add_model(store: Store, name: ModelName, *contents: bytes, origin: str = "") -> None:
    """Write a model whose config is the first of the contents into a store."""
    entries = [Descriptor("t", *store.blobs.put(data), origin) for data in contents]
    store.write(name, build_manifest(entries[0], entries[1:]))


async def test_a_pull_tells_layers_in_order_then_the_config(
    registry: FaultyRegistry, store: Store, pull: Pull, payload: bytes
) -> None:
    name = registry.add(b"{}", [payload, b"second"])
    lines = await pull(store, name)
    assert steps_of(lines) == [
        "pulling manifest", f"pulling {short(payload)}", f"pulling {short(b'second')}",
        f"pulling {short(b'{}')}", "verifying sha256 digest", "writing manifest", "success",
    ]  # fmt: skip
    progress = [line for line in lines if line.get("digest") == digest_of(payload)]
    assert progress[0] == {
        "status": f"pulling {short(payload)}",
        "digest": digest_of(payload),
        "total": len(payload),
    }
    assert progress[-1] == {**progress[0], "completed": len(payload)}
    assert store.read(name).raw == registry.manifests["library/m:latest"]


async def test_what_is_there_gives_one_line_each_and_no_request(
    registry: FaultyRegistry, store: Store, pull: Pull, payload: bytes
) -> None:
    name = registry.add(b"{}", [payload])
    await pull(store, name)
    registry.requests.clear()
    lines = await pull(store, name)
    assert [line.get("completed") for line in lines] == [None, len(payload), 2, None, None, None]
    assert [(method, path) for method, path, _ in registry.requests] == [
        ("GET", "/v2/library/m/manifests/latest")
    ]


async def test_blobs_of_the_manifest_that_was_replaced_are_removed(
    registry: FaultyRegistry, store: Store, pull: Pull
) -> None:
    await pull(store, registry.add(b"{}", [b"old", b"kept"]))
    lines = await pull(store, registry.add(b"{}", [b"new", b"kept"]))
    assert steps_of(lines)[-3:] == ["writing manifest", "removing unused layers", "success"]
    assert set(store.blobs.digests()) == {digest_of(data) for data in (b"{}", b"new", b"kept")}


async def test_they_are_kept_if_the_configuration_says_so(
    registry: FaultyRegistry, store: Store, pull: Pull
) -> None:
    await pull(store, registry.add(b"{}", [b"old"]))
    lines = await pull(store, registry.add(b"{}", [b"new"]), no_prune=True)
    assert "removing unused layers" not in steps_of(lines)
    assert store.blobs.has(digest_of(b"old"))


async def test_a_model_deleted_during_its_pull_does_not_take_blobs_along(
    registry: FaultyRegistry, store: Store, make_client: MakeClient, payload: bytes
) -> None:
    add_model(store, parse_name("other"), b"shared")
    name = registry.add(b"{}", [b"shared", payload])
    async for line in make_client(store).pull(name, insecure=True, allow_loopback=True):
        if line.get("digest") == digest_of(payload) and store.has(parse_name("other")):
            await asyncio.to_thread(store.delete, parse_name("other"))
    assert store.read(name).blobs[0].digest == digest_of(b"shared")
    assert store.blobs.has(digest_of(b"shared"))


async def test_a_truncated_blob_in_the_store_is_fetched_again(
    registry: FaultyRegistry, store: Store, pull: Pull, payload: bytes
) -> None:
    name = registry.add(b"{}", [payload])
    await pull(store, name)
    os.truncate(store.blobs.path(digest_of(payload)), 1000)
    await pull(store, name)
    assert store.blobs.verify(digest_of(payload))


async def test_a_blob_with_a_wrong_byte_is_fetched_again_as_its_error_says(
    registry: FaultyRegistry, store: Store, pull: Pull, payload: bytes
) -> None:
    name = registry.add(b"{}", [payload, b"template"])
    await pull(store, name)
    for data in (payload, b"template"):
        path = store.blobs.path(digest_of(data))
        path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    with pytest.raises(DamagedBlob) as caught:
        store.blobs.read(digest_of(b"template"))
    assert caught.value.hint == "pull the model again"
    await pull(store, name)
    assert store.blobs.read(digest_of(b"template")) == b"template"
    assert store.blobs.read(digest_of(payload)) == payload


async def test_a_manifest_that_lies_about_a_stored_blob_is_refused(
    registry: FaultyRegistry, store: Store, pull: Pull
) -> None:
    store.blobs.put(b"layer")
    raw = manifest_of(b"{}", [b"layer"]).replace(b'"size": 5', b'"size": 6')
    registry.blobs[digest_of(b"{}")] = b"{}"
    with pytest.raises(TransferError, match="has 5 bytes, the manifest says 6"):
        await pull(store, registry.add_manifest(raw))
    assert store.blobs.has(digest_of(b"layer"))


async def test_a_missing_model_says_what_ollama_says(
    registry: FaultyRegistry, store: Store, pull: Pull
) -> None:
    with pytest.raises(ModelNotFound, match=r"^pull model manifest: file does not exist$") as caught:
        await pull(store, ModelName(f"127.0.0.1:{registry.port}", "library", "none", "latest"))
    assert caught.value.hint == f"check the name: 127.0.0.1:{registry.port} has no library/none:latest"
    assert files_in(store.blobs.folder) == []


async def test_a_failing_registry_is_quoted(registry: FaultyRegistry, store: Store, pull: Pull) -> None:
    from aiohttp import web

    registry.before = lambda request: web.Response(status=418, text="tea\n\x1b[31m pot")
    with pytest.raises(TransferError, match=r"^pull model manifest: 418: tea \[31m pot$"):
        await pull(store, ModelName(f"127.0.0.1:{registry.port}", "library", "m", "latest"))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"errors":[{"code":"DENIED","message":"pay \\u001b[31mfirst","detail":null}]}', r"pay \[31mfirst"),
        (b'{"errors":[{"code":"DENIED"},{"message":"twice"}]}', "DENIED; twice"),
        (b'{"errors":[]}', ""),
        (b"\n<!DOCTYPE HTML>\n<title>Error response</title>", "it answers with a web page"),
        (b'{"error":"other words"}', '{"error":"other words"}'),
        (b'{"errors":[{"message":"cut', r'\{"errors":\[\{"message":"cut'),
        (b'{"errors":[{"message":"\xff"}]}', ".+"),
        (b"[" * 5000, r"\[{4096}"),
    ],
)
async def test_of_an_error_of_the_protocol_the_message_is_quoted(
    body: bytes, said: str, registry: FaultyRegistry, store: Store, pull: Pull
) -> None:
    from aiohttp import web

    registry.before = lambda request: web.Response(status=418, body=body)
    with pytest.raises(TransferError, match=f"^pull model manifest: 418: {said}$"):
        await pull(store, ModelName(f"127.0.0.1:{registry.port}", "library", "m", "latest"))


async def test_a_manifest_that_is_not_what_its_header_says_is_refused(
    registry: FaultyRegistry, store: Store, pull: Pull
) -> None:
    registry.faults.extra_headers = {"Docker-Content-Digest": digest_of(b"other")}
    with pytest.raises(TransferError, match="pull model manifest: digest mismatch"):
        await pull(store, registry.add(b"{}", []))


async def test_nobody_listening_is_an_error_without_traces(
    store: Store, pull: Pull, unused_tcp_port: int
) -> None:
    with pytest.raises(TransferError, match="max retries exceeded: registry 127"):
        await pull(store, ModelName(f"127.0.0.1:{unused_tcp_port}", "library", "m", "latest"))


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        (parse_name("http://h/n/m"), {}, InvalidRequest, "insecure protocol http"),
        (parse_name("127.0.0.1:1/n/m"), {"insecure": True}, Forbidden, "plain http is not allowed"),
        (parse_name("127.0.0.1:1/n/m"), {"allow_loopback": True}, Forbidden, "address is not allowed: 127"),
        (parse_name("a:b:c/n/m"), {}, InvalidName, "invalid model name"),
        (parse_name("h:99999/n/m"), {}, InvalidName, "invalid model name"),
    ],
)
async def test_an_operation_that_may_not_be_is_refused_before_any_request(
    store: Store,
    make_client: MakeClient,
    name: ModelName,
    options: dict[str, bool],
    error: type[FtdError],
    message: str,
) -> None:
    lines = []
    with pytest.raises(error, match=message):
        async for line in make_client(store).pull(name, **options):
            lines.append(line)
    assert lines == [{"status": "pulling manifest"}]


async def test_a_push_tells_layers_in_order_then_the_config(
    served: Served, store: Store, make_client: MakeClient, payload: bytes
) -> None:
    there, port = served
    name = ModelName(f"127.0.0.1:{port}", "library", "m", "latest")
    add_model(store, name, b"{}", payload, b"", b"second")
    lines = await push(make_client(store), name)
    assert steps_of(lines) == [
        "retrieving manifest", f"pushing {short(payload)}", f"pushing {short(b'')}",
        f"pushing {short(b'second')}", f"pushing {short(b'{}')}", "pushing manifest", "success",
    ]  # fmt: skip
    progress = [line.get("completed", 0) for line in lines if line.get("digest") == digest_of(payload)]
    assert progress == sorted(progress)
    assert progress[-1] == len(payload)
    assert there.read(parse_name("m")).raw == store.read(name).raw


async def test_a_push_of_what_is_there_sends_no_bytes(
    served: Served, store: Store, make_client: MakeClient, payload: bytes
) -> None:
    there, port = served
    name = ModelName(f"127.0.0.1:{port}", "library", "m", "latest")
    add_model(store, name, b"{}", payload)
    await push(make_client(store), name)
    inode = there.blobs.path(digest_of(payload)).stat().st_ino
    lines = await push(make_client(store), name)
    assert steps_of(lines)[-1] == "success"
    assert there.blobs.path(digest_of(payload)).stat().st_ino == inode


async def test_pushing_what_is_not_here_says_so(store: Store, make_client: MakeClient) -> None:
    lines = []
    with pytest.raises(ModelNotFound):
        async for line in make_client(store).push(parse_name("h/n/m"), insecure=True, allow_loopback=True):
            lines.append(line)
    assert lines == [{"status": "retrieving manifest"}, {"status": "couldn't retrieve manifest"}]


async def test_pushing_a_model_with_a_missing_blob_says_which(
    served: Served, store: Store, make_client: MakeClient
) -> None:
    name = ModelName(f"127.0.0.1:{served[1]}", "library", "m", "latest")
    add_model(store, name, b"{}", b"layer")
    store.blobs.remove(digest_of(b"layer"))
    with pytest.raises(BlobNotFound, match=digest_of(b"layer")):
        await push(make_client(store), name)
    assert served[0].list() == []


async def test_a_push_then_a_pull_gives_the_same_bytes(
    served: Served, store: Store, make_client: MakeClient, payload: bytes, tmp_path: Any
) -> None:
    name = ModelName(f"127.0.0.1:{served[1]}", "ns", "m", "8b")
    add_model(store, name, b"{}", payload)
    await push(make_client(store), name)
    elsewhere = Store(tmp_path / "elsewhere")
    client = make_client(elsewhere)
    async with contextlib.aclosing(client.pull(name, insecure=True, allow_loopback=True)) as lines:
        assert [line async for line in lines][-1] == {"status": "success"}
    assert elsewhere.read(name).raw == store.read(name).raw
    assert elsewhere.blobs.read(digest_of(payload)) == payload


def test_chunk_hashes_are_read_out_of_an_ftw_config_and_nothing_else() -> None:
    blob = bytes(250)
    found = parse_chunk_hashes(ftw_config(blob, 100))
    assert found[digest_of(blob)].chunk_bytes == 100
    assert len(found[digest_of(blob)].hashes) == 3
    assert found == {digest_of(blob): ChunkHashes(100, found[digest_of(blob)].hashes)}
    for other in (
        b"",
        b"{}",
        b"[]",
        b'{"blobs":[{}]}',
        b'{"blobs":[{"digest":1,"chunk_bytes":2,"chunks":[]}]}',
    ):
        assert parse_chunk_hashes(other) == {}


async def test_an_oci_manifest_is_stored_as_it_came(
    registry: FaultyRegistry, store: Store, pull: Pull
) -> None:
    raw = manifest_of(b"{}", [b"layer"]).replace(
        MANIFEST_V2.encode(), b"application/vnd.oci.image.manifest.v1+json"
    )
    name = registry.add(b"{}", [b"layer"])
    registry.add_manifest(raw)
    await pull(store, name)
    assert store.read(name) == parse_manifest(raw)
