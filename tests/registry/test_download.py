"""Downloads from a registry with faults: what arrives is right or not there, and little is sent twice."""

import asyncio
import contextlib
import errno
import json
import random
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from faulty_registry import FaultyRegistry, digest_of, files_in, ftw_config

from ftd.errors import InsufficientSpace, NotFound, TransferError, Unauthorized
from ftd.names import ModelName
from ftd.registry.client import RegistryClient
from ftd.registry.connection import Limits
from ftd.registry.download import ChunkHashes
from ftd.registry.parts import PartialFile, held_bytes
from ftd.registry.store import Store

Pull = Callable[..., Any]
CHUNK = 100_000


def completed_in(lines: list[dict[str, Any]], blob: bytes) -> list[int]:
    return [line.get("completed", 0) for line in lines if line.get("digest") == digest_of(blob)]


async def test_a_blob_comes_in_parallel_ranges_that_cover_it_once(
    registry: FaultyRegistry, store: Store, pull: Pull, payload: bytes
) -> None:
    lines = await pull(store, registry.add(b"{}", [payload]))
    assert store.blobs.path(digest_of(payload)).read_bytes() == payload
    assert registry.num_sent == len(payload) + 2
    ranges = [headers["Range"] for headers in registry.blob_requests()]
    assert (len(ranges), len(set(ranges))) == (34, 34)
    assert completed_in(lines, payload)[-1] == len(payload)
    assert len(files_in(store.blobs.folder)) == 2


async def test_an_empty_blob_is_a_blob(registry: FaultyRegistry, store: Store, pull: Pull) -> None:
    await pull(store, registry.add(b"{}", [b""]))
    assert store.blobs.read(digest_of(b"")) == b""


async def test_cuts_cost_little_and_progress_never_falls(
    registry: FaultyRegistry, store: Store, pull: Pull
) -> None:
    blob = random.Random(1).randbytes(8 * 2**20 + 1)
    registry.faults.cut_every, registry.faults.num_cuts = 40_000, 7
    lines = await pull(store, registry.add(b"{}", [blob]))
    assert store.blobs.verify(digest_of(blob))
    assert registry.faults.num_cuts == 0
    assert registry.num_sent <= 1.05 * len(blob)
    completed = completed_in(lines, blob)
    assert completed == sorted(completed)


async def test_a_link_that_is_always_cut_is_an_error_and_what_came_stays(
    registry: FaultyRegistry, store: Store, pull: Pull, payload: bytes
) -> None:
    name = registry.add(b"{}", [payload])
    registry.faults.cut_every, registry.faults.num_cuts = 1, 10**6
    with pytest.raises(TransferError, match="max retries exceeded"):
        await pull(store, name)
    assert not store.blobs.has(digest_of(payload))
    registry.faults.num_cuts = 0
    await pull(store, name)
    assert store.blobs.verify(digest_of(payload))


async def test_a_wrong_byte_costs_one_chunk_when_chunks_have_hashes(
    registry: FaultyRegistry, store: Store, pull: Pull, payload: bytes
) -> None:
    config = ftw_config(payload, CHUNK)
    registry.faults.flip_at, registry.faults.num_flips = 3 * CHUNK + 5, 1
    lines = await pull(store, registry.add(config, [payload]))
    assert store.blobs.verify(digest_of(payload))
    assert registry.num_sent == len(payload) + len(config) + CHUNK
    assert completed_in(lines, payload) == sorted(completed_in(lines, payload))


async def test_a_byte_that_is_always_wrong_leaves_no_blob_and_only_its_chunk_to_fetch(
    registry: FaultyRegistry, store: Store, pull: Pull, payload: bytes
) -> None:
    name = registry.add(ftw_config(payload, CHUNK), [payload])
    registry.faults.flip_at, registry.faults.num_flips = 500_005, 10**6
    with pytest.raises(TransferError, match="digest mismatch, file must be downloaded again: want sha256:"):
        await pull(store, name)
    assert not store.blobs.has(digest_of(payload))
    assert store.list() == []
    assert held_bytes(store.blobs, digest_of(payload), len(payload)) == len(payload) - CHUNK
    registry.faults.num_flips, before = 0, registry.num_sent
    await pull(store, name)
    assert registry.num_sent - before == CHUNK


@pytest.mark.parametrize(
    "config", [b"{}", b'{"blobs":[]}', b'{"blobs":3}', b"\xff", b"short list", b"false list"]
)
async def test_without_chunk_hashes_a_wrong_byte_costs_the_blob_once(
    registry: FaultyRegistry, store: Store, pull: Pull, payload: bytes, config: bytes
) -> None:
    if config == b"short list":
        config = ftw_config(payload, CHUNK).replace(b'"chunks": ["', b'"chunks": ["aa", "')
    registry.faults.flip_at, registry.faults.num_flips = 500_005, 1
    await pull(store, registry.add(config, [payload]))
    assert store.blobs.verify(digest_of(payload))
    assert registry.num_sent == 2 * len(payload) + len(config)


async def test_without_chunk_hashes_a_byte_that_is_always_wrong_leaves_nothing(
    registry: FaultyRegistry, store: Store, pull: Pull, payload: bytes
) -> None:
    registry.faults.flip_at, registry.faults.num_flips = 500_005, 10**6
    with pytest.raises(TransferError, match="digest mismatch"):
        await pull(store, registry.add(b"{}", [payload]))
    assert files_in(store.blobs.folder) == [digest_of(b"{}").replace(":", "-")]
    assert registry.num_sent == 2 * len(payload) + 2


async def test_chunk_hashes_of_another_blob_are_no_excuse(
    registry: FaultyRegistry, store: Store, pull: Pull, payload: bytes
) -> None:
    other = payload[:-1] + b"?"
    config = ftw_config(other, CHUNK).replace(digest_of(other).encode(), digest_of(payload).encode())
    name = registry.add(config, [payload])
    registry.blobs[digest_of(payload)] = other
    with pytest.raises(TransferError, match="digest mismatch"):
        await pull(store, name)
    assert [file for file in files_in(store.blobs.folder) if digest_of(payload)[7:] in file] == []


@pytest.mark.parametrize("num_cuts", [0, 2])
async def test_a_registry_without_ranges_is_read_from_the_start(
    registry: FaultyRegistry, store: Store, pull: Pull, payload: bytes, num_cuts: int
) -> None:
    registry.faults.ignore_range = True
    registry.faults.cut_every, registry.faults.num_cuts = 300_000, num_cuts
    await pull(store, registry.add(b"{}", [payload]))
    assert store.blobs.verify(digest_of(payload))
    assert len(registry.blob_requests()) == 2 + num_cuts


async def test_a_registry_that_stops_honouring_ranges_corrupts_nothing(
    registry: FaultyRegistry, store: Store, pull: Pull, payload: bytes
) -> None:
    def stop_after_four(request: Any) -> None:
        registry.faults.ignore_range = len(registry.blob_requests()) > 4

    registry.before = stop_after_four
    with pytest.raises(TransferError, match="max retries exceeded: registry stopped honouring ranges"):
        await pull(store, registry.add(b"{}", [payload]))
    assert not store.blobs.has(digest_of(payload))


@pytest.mark.parametrize("shift", [-1, 1])
async def test_an_answer_for_another_range_is_refused(
    registry: FaultyRegistry, store: Store, pull: Pull, payload: bytes, shift: int
) -> None:
    registry.faults.shift_content_range = shift
    with pytest.raises(TransferError, match="registry answered range"):
        await pull(store, registry.add(b"{}", [payload]))
    assert not store.blobs.has(digest_of(payload))


async def test_a_stalled_stream_is_asked_again(
    registry: FaultyRegistry, store: Store, pull: Pull, payload: bytes
) -> None:
    registry.faults.stall_after, registry.faults.num_stalls = 20_000, 2
    limits = Limits(stall_s=0.2, attempts=20, backoff_s=0.0, min_part_bytes=65536)
    await pull(store, registry.add(b"{}", [payload]), limits=limits)
    assert registry.faults.num_stalls == 0
    assert store.blobs.verify(digest_of(payload))


async def test_a_passing_failure_is_tried_again(
    registry: FaultyRegistry, store: Store, pull: Pull, payload: bytes
) -> None:
    registry.faults.statuses = deque([503, 429])
    await pull(store, registry.add(b"{}", [payload]))
    assert store.blobs.verify(digest_of(payload))


@pytest.mark.parametrize(
    ("status", "error"), [(404, NotFound), (403, Unauthorized), (400, TransferError), (418, TransferError)]
)
async def test_a_lasting_failure_is_not_tried_again(
    registry: FaultyRegistry, store: Store, pull: Pull, payload: bytes, status: int, error: type[Exception]
) -> None:
    registry.faults.statuses = deque([status])
    with pytest.raises(error, match="blob sha256:"):
        await pull(store, registry.add(b"{}", [payload]))
    assert len(registry.blob_requests()) == 1


async def test_a_blob_of_another_length_than_stated_is_refused(
    registry: FaultyRegistry, store: Store, pull: Pull, payload: bytes
) -> None:
    name = registry.add(b"{}", [payload])
    registry.blobs[digest_of(payload)] = payload + b"more"
    with pytest.raises(TransferError, match=f"has {len(payload) + 4} bytes at the registry"):
        await pull(store, name)


async def test_redirects_are_followed_for_each_range(
    registry: FaultyRegistry, store: Store, pull: Pull, payload: bytes
) -> None:
    registry.faults.redirect_blobs_to = "/direct/"
    await pull(store, registry.add(b"{}", [payload]))
    assert store.blobs.verify(digest_of(payload))


async def test_a_full_disk_is_told_apart_and_what_came_stays(
    registry: FaultyRegistry, store: Store, pull: Pull, payload: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = PartialFile.write

    def full(self: PartialFile, offset: int, pieces: list[bytes]) -> None:
        if offset > 500_000:
            raise OSError(errno.ENOSPC, "no space left")
        write(self, offset, pieces)

    monkeypatch.setattr(PartialFile, "write", full)
    with pytest.raises(InsufficientSpace, match="no space left while downloading"):
        await pull(store, registry.add(b"{}", [payload]))
    assert 0 < held_bytes(store.blobs, digest_of(payload), len(payload)) <= 600_000


async def leave_half_way(
    registry: FaultyRegistry, client: RegistryClient, name: ModelName, blob: bytes
) -> int:
    """Start a pull, close it when half of the blob is there, and return how much was."""
    registry.faults.gate, registry.faults.gate_after = asyncio.Event(), len(blob) // 2
    completed = 0
    async with contextlib.aclosing(client.pull(name, insecure=True, allow_loopback=True)) as lines:
        async for line in lines:
            completed = line.get("completed", 0)
            if completed >= len(blob) // 2 - 128 * 1024:
                break
    registry.faults.gate.set()
    registry.faults.gate = None
    return completed


ONE_STREAM = Limits(attempts=3, backoff_s=0.0)


async def test_a_pull_that_was_left_goes_on_from_where_it_was(
    registry: FaultyRegistry, store: Store, make_client: Callable[..., RegistryClient], pull: Pull
) -> None:
    blob = random.Random(2).randbytes(8 * 2**20)
    name = registry.add(b"{}", [blob])
    completed = await leave_half_way(registry, make_client(store, ONE_STREAM), name, blob)
    assert not store.blobs.has(digest_of(blob))
    assert held_bytes(store.blobs, digest_of(blob), len(blob)) >= completed
    lines = await pull(store, name)
    assert completed_in(lines, blob)[0] >= completed
    assert store.blobs.verify(digest_of(blob))
    assert registry.num_sent <= 1.05 * len(blob)


async def test_bytes_that_are_there_are_kept_when_ranges_are_not_honoured_any_more(
    registry: FaultyRegistry, store: Store, make_client: Callable[..., RegistryClient], pull: Pull
) -> None:
    blob = random.Random(4).randbytes(8 * 2**20)
    name = registry.add(b"{}", [blob])
    await leave_half_way(registry, make_client(store, ONE_STREAM), name, blob)
    registry.faults.ignore_range = True
    registry.faults.flip_at, registry.faults.num_flips = 1_000_000, 10**6
    registry.requests.clear()
    await pull(store, name)
    assert store.blobs.verify(digest_of(blob))
    assert len(registry.blob_requests()) == 2


KILLED_PULL = """
import asyncio, json, sys
from pathlib import Path
from ftd.config import RegistryConfig
from ftd.names import parse_name
from ftd.registry.client import RegistryClient
from ftd.registry.store import Store
async def main():
    store = Store(Path(sys.argv[1]))
    client = RegistryClient(store, RegistryConfig(models_dir=store.models_dir), key_dir=Path(sys.argv[1]))
    async for line in client.pull(parse_name(sys.argv[2]), insecure=True, allow_loopback=True):
        print(json.dumps(line), flush=True)
asyncio.run(main())
"""


async def test_a_killed_pull_goes_on_and_little_is_sent_twice(
    registry: FaultyRegistry, store: Store, pull: Pull
) -> None:
    blob = random.Random(3).randbytes(8 * 2**20)
    name = registry.add(b"{}", [blob])
    registry.faults.gate, registry.faults.gate_after = asyncio.Event(), len(blob) // 2
    command = ["-c", KILLED_PULL, str(store.models_dir), name.full]
    child = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
    assert child.stdout is not None
    async for line in child.stdout:
        if json.loads(line).get("completed", 0) >= len(blob) // 2 - 128 * 1024:
            break
    child.kill()
    await child.communicate()
    assert not store.blobs.has(digest_of(blob))
    registry.faults.gate.set()
    registry.faults.gate = None
    store.sweep()
    await pull(store, name)
    assert store.blobs.verify(digest_of(blob))
    assert registry.num_sent <= 1.05 * len(blob)


def test_chunk_hashes_fit_a_size_or_not() -> None:
    hashes = ChunkHashes(10, ("a", "b"))
    assert [hashes.fits(size) for size in (10, 11, 20, 21)] == [False, True, True, False]
    assert not ChunkHashes(0, ()).fits(0)
    assert ChunkHashes(10, ()).fits(0)
