"""Single flight: one download for each blob, shared by its watchers, cancelled when the last one leaves."""

import asyncio
import contextlib
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from faulty_registry import FaultyRegistry, digest_of, files_in

from ftd.errors import FtdError, NotFound, TransferError
from ftd.names import ModelName
from ftd.registry.client import RegistryClient
from ftd.registry.parts import PartialFile
from ftd.registry.store import Store
from ftd.registry.transfer import Downloads

MakeClient = Callable[..., RegistryClient]
BLOB = random.Random(5).randbytes(2**20)


async def drain(client: RegistryClient, name: ModelName) -> list[dict[str, Any]]:
    return [line async for line in client.pull(name, insecure=True, allow_loopback=True)]


def gated(registry: FaultyRegistry) -> asyncio.Event:
    """Make the registry stop half way through the blob until the event is set."""
    registry.faults.gate, registry.faults.gate_after = asyncio.Event(), len(BLOB) // 2
    return registry.faults.gate


async def test_many_watchers_share_one_download(
    registry: FaultyRegistry, store: Store, make_client: MakeClient
) -> None:
    names = [registry.add(b"{}", [BLOB], f"m{index}") for index in range(5)]
    client, gate = make_client(store), gated(registry)
    pulls = [asyncio.create_task(drain(client, name)) for name in names]
    await registry.reached_gate.wait()
    gate.set()
    results = await asyncio.gather(*pulls)
    assert all(lines[-1] == {"status": "success"} for lines in results)
    assert registry.num_sent == len(BLOB) + 2
    assert len(store.list()) == 5


async def test_a_watcher_may_leave_without_harm_to_the_others(
    registry: FaultyRegistry, store: Store, make_client: MakeClient
) -> None:
    name = registry.add(b"{}", [BLOB])
    client, gate = make_client(store), gated(registry)
    first = asyncio.create_task(drain(client, name))
    second = asyncio.create_task(drain(client, name))
    await registry.reached_gate.wait()
    first.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await first
    gate.set()
    assert (await second)[-1] == {"status": "success"}
    assert registry.num_sent == len(BLOB) + 2


async def test_the_last_watcher_takes_the_download_with_it(
    registry: FaultyRegistry, store: Store, make_client: MakeClient
) -> None:
    name = registry.add(b"{}", [BLOB])
    client = make_client(store)
    gated(registry)
    pulls = [asyncio.create_task(drain(client, name)) for _ in range(2)]
    await registry.reached_gate.wait()
    for task in pulls:
        task.cancel()
    assert [type(found) for found in await asyncio.gather(*pulls, return_exceptions=True)] == [
        asyncio.CancelledError
    ] * 2
    partial = PartialFile.open(store.blobs, digest_of(BLOB), len(BLOB))
    partial.close(partial.encode_journal())


async def test_who_comes_while_a_download_is_leaving_starts_it_again(
    registry: FaultyRegistry, store: Store, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_joined = threading.Event()
    join, close = Downloads._join, PartialFile.close

    def noted_join(self: Downloads, request: Any) -> Any:
        flight = join(self, request)
        has_joined.set()
        return flight

    def close_after_that(self: PartialFile, journal: bytes) -> None:
        assert has_joined.wait(timeout=30)
        close(self, journal)

    name = registry.add(b"{}", [BLOB])
    client, gate = make_client(store), gated(registry)
    first = asyncio.create_task(drain(client, name))
    await registry.reached_gate.wait()
    monkeypatch.setattr(Downloads, "_join", noted_join)
    monkeypatch.setattr(PartialFile, "close", close_after_that)
    first.cancel()
    gate.set()
    registry.faults.gate = None
    assert (await drain(client, name))[-1] == {"status": "success"}
    assert store.blobs.verify(digest_of(BLOB))


async def test_a_failure_reaches_every_watcher_and_the_next_pull_tries_again(
    registry: FaultyRegistry, store: Store, make_client: MakeClient
) -> None:
    name = registry.add(b"{}", [BLOB])
    client = make_client(store)
    del registry.blobs[digest_of(BLOB)]
    results = await asyncio.gather(drain(client, name), drain(client, name), return_exceptions=True)
    assert [type(found) for found in results] == [NotFound, NotFound]
    assert store.list() == []
    registry.blobs[digest_of(BLOB)] = BLOB
    assert (await drain(client, name))[-1] == {"status": "success"}


async def test_a_watcher_of_another_registry_is_not_failed_by_the_first_one(
    registry: FaultyRegistry, store: Store, make_client: MakeClient
) -> None:
    bad = registry.add(b"{}", [BLOB], "bad")
    good = ModelName(f"localhost:{registry.port}", "library", "bad", "latest")
    client, gate = make_client(store), gated(registry)
    first = asyncio.create_task(drain(client, bad))
    await registry.reached_gate.wait()
    second = client.pull(good, insecure=True, allow_loopback=True)
    async for line in second:
        if line.get("digest") == digest_of(BLOB):
            break
    # The first registry loses the blob in the middle of the transfer; the second one has it.
    blobs = registry.blobs

    def only_for_localhost(request: Any) -> None:
        registry.blobs = blobs if request.host.startswith("localhost") else {}

    registry.before = only_for_localhost
    registry.faults.cut_every, registry.faults.num_cuts = 1, 8
    gate.set()
    with pytest.raises(FtdError):
        await first
    assert [line async for line in second][-1] == {"status": "success"}
    assert store.blobs.verify(digest_of(BLOB))


async def test_two_sizes_for_one_blob_do_not_mix(
    registry: FaultyRegistry, store: Store, make_client: MakeClient
) -> None:
    name = registry.add(b"{}", [BLOB], "right")
    lie = registry.manifests["library/right:latest"].replace(str(len(BLOB)).encode(), b"77")
    wrong = registry.add_manifest(lie, "wrong")
    client, gate = make_client(store), gated(registry)
    right = asyncio.create_task(drain(client, name))
    await registry.reached_gate.wait()
    with pytest.raises(TransferError, match="different sizes: 1048576 and 77"):
        await drain(client, wrong)
    gate.set()
    assert (await right)[-1] == {"status": "success"}


async def test_another_process_at_the_same_blob_is_told_apart(
    registry: FaultyRegistry, store: Store, make_client: MakeClient
) -> None:
    name = registry.add(b"{}", [BLOB])
    partial = PartialFile.open(store.blobs, digest_of(BLOB), len(BLOB))
    with pytest.raises(TransferError, match="another process is downloading this blob"):
        await drain(make_client(store), name)
    partial.close(partial.encode_journal())
    assert files_in(store.blobs.folder) == []
