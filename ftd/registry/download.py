"""One blob on its way from a registry to the disk: parallel ranges, verified as it comes, repaired by chunk.

    streams ──ranges──▶ PartialFile ──contiguous front──▶ hasher ──digest──▶ publish
                             ▲                               └ wrong: find the chunks that differ ┐
                             └───────────────── fetch those again ◀──────────────────────────────┘

The hasher follows the contiguous front of the file in a thread. When the digest is wrong and the hashes of
the blob's chunks are known, only chunks that differ are fetched again; otherwise the whole blob is, once.
Memory is bounded by the number of streams, whatever the size of the blob.
"""

import asyncio
import errno
import hashlib
import logging
import re
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import aiohttp
from yarl import URL

from ftd import log as line
from ftd.errors import InsufficientSpace, TransferError
from ftd.registry.connection import Connection, Limits, TransientError, status_error
from ftd.registry.parts import PartialFile

log = logging.getLogger(__name__)

_MIB = 2**20
_HASH_STEP_BYTES = 8 * _MIB
_SYNC_STEP_BYTES = 64 * _MIB
_PROGRESS_BYTES = _MIB
_MIN_WINDOW_BYTES = 256 * 1024
_FLUSH_S = 0.25
_MAX_REPAIRS = 2
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class ChunkHashes:
    """The sha256, in hex, of each run of ``chunk_bytes`` of a blob; the last run may be shorter."""

    chunk_bytes: int
    hashes: tuple[str, ...]

    def fits(self, size: int) -> bool:
        """Say whether there is one hash for each chunk of a blob of ``size`` bytes."""
        return self.chunk_bytes > 0 and len(self.hashes) == -(-size // self.chunk_bytes)


ChunkSource = Callable[[], Awaitable[ChunkHashes | None]]


@dataclass(slots=True)
class _Part:
    start: int
    end: int


class _Backlog:
    """Bytes that wait for a background task; it runs when enough of them are there, and at the end."""

    def __init__(self, step_bytes: int) -> None:
        self._step_bytes = step_bytes
        self._num_bytes = 0
        self._is_due = asyncio.Event()

    def add(self, num_bytes: int, is_last: bool) -> None:
        self._num_bytes += num_bytes
        if is_last or self._num_bytes >= self._step_bytes:
            self._is_due.set()

    async def drain(self) -> None:
        await self._is_due.wait()
        self._is_due.clear()
        self._num_bytes = 0


class Download:
    """The transfer of one blob into one PartialFile. Lives on one event loop; run once.

    ``completed`` never falls, even when bytes turn out wrong and are fetched again.
    """

    def __init__(
        self, partial: PartialFile, url: URL, connection: Connection, chunks: ChunkSource, limits: Limits
    ) -> None:
        self.completed = partial.ranges.num_bytes
        self._partial = partial
        self._size = partial.size
        self._url = url
        self._connection = connection
        self._chunks = chunks
        self._limits = limits
        self._executor = ThreadPoolExecutor(4, thread_name_prefix="download")
        self._parts: deque[_Part] = deque()
        self._grown = asyncio.Event()
        self._unsaved = _Backlog(min(self._size // 200, 8 * _MIB))
        self._unsynced = _Backlog(_SYNC_STEP_BYTES)
        self._ranges_work = asyncio.Event()
        self._window_bytes = _MIN_WINDOW_BYTES

    async def run(self, num_streams: int) -> None:
        """Fetch, verify and publish the blob; after a failure what is right stays for the next try."""
        num_streams = max(1, min(num_streams, self._size // self._limits.stream_bytes))
        try:
            for num_repairs in range(_MAX_REPAIRS + 1):
                digest = await self._fetch_and_hash(num_streams)
                if digest == self._partial.digest:
                    await self._in_thread(self._partial.publish)
                    return
                await self._forget_wrong(digest, num_repairs)
        except OSError as exc:
            if exc.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise InsufficientSpace(f"no space left while downloading: {self._partial.digest}") from exc
        finally:
            # Threads cannot be cancelled: the file is closed in one, after the last of them has left it.
            await asyncio.shield(asyncio.to_thread(self._finish, self._partial.encode_journal()))

    def _finish(self, journal: bytes) -> None:
        self._executor.shutdown(wait=True)
        self._partial.close(journal)

    async def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)

    async def _fetch_and_hash(self, num_streams: int) -> str:
        self._window_bytes = max(_MIN_WINDOW_BYTES, self._size // (100 * num_streams))
        part_bytes = max(
            self._limits.min_part_bytes, min(self._limits.part_bytes, self._size // (4 * num_streams))
        )
        for start, end in self._partial.ranges.gaps(0, self._size):
            edges = [*range(start, end, part_bytes), end]
            self._parts.extend(map(_Part, edges[:-1], edges[1:]))
        self._ranges_work.clear()
        streams = [self._stream(index) for index in range(min(num_streams, len(self._parts)))]
        digest, *_ = await _together([self._hash(), self._keep_journal(), self._keep_synced(), *streams])
        return str(digest)

    async def _stream(self, index: int) -> None:
        # One stream goes first, to learn whether the registry honours ranges.
        if index > 0:
            await self._ranges_work.wait()
        while self._parts:
            await self._fetch_part(self._parts.popleft())
        self._ranges_work.set()

    async def _fetch_part(self, part: _Part) -> None:
        failures = 0
        while part.start < part.end:
            before = part.start
            try:
                await self._attempt(part)
            except TransientError as exc:
                failures = 1 if part.start - before >= _PROGRESS_BYTES else failures + 1
                if failures >= self._limits.attempts:
                    raise TransferError(f"max retries exceeded: {exc.message}", exc.hint) from exc
                log.debug(line.fields("download retry", digest=self._partial.digest, reason=exc.message))
                await asyncio.sleep(self._limits.pause_s(failures))

    async def _attempt(self, part: _Part) -> None:
        headers = {"Range": f"bytes={part.start}-{part.end - 1}"}
        async with self._connection.request("GET", self._url, headers=headers) as response:
            if response.status == 206:
                _check_content_range(response, part, self._size)
                _clamp_window(response, self._window_bytes)
                self._ranges_work.set()
                async for offset, pieces, num_bytes in self._batches(response, part.start, part.end):
                    await self._store(offset, pieces, num_bytes)
                    part.start = offset + num_bytes
            elif response.status == 200:
                await self._take_whole(response)
                part.start = self._partial.ranges.front(part.start)
            else:
                raise await status_error(response, f"blob {self._partial.digest}")
        if part.start < part.end:
            raise TransientError(f"registry ended a range early: {part.start} of {part.end}")

    async def _take_whole(self, response: aiohttp.ClientResponse) -> None:
        """Take what is missing out of an answer that is the whole blob although a range was asked for."""
        if response.content_length not in (None, self._size):
            raise TransferError(
                f"blob {self._partial.digest} has {response.content_length} bytes at the registry, "
                f"the manifest says {self._size}"
            )
        if self._ranges_work.is_set():
            raise TransientError("registry stopped honouring ranges")
        async for offset, pieces, num_bytes in self._batches(response, 0, self._size):
            data = b"".join(pieces)
            for start, end in self._partial.ranges.gaps(offset, offset + num_bytes):
                await self._store(start, [data[start - offset : end - offset]], end - start)
        if not self._partial.ranges.gaps(0, self._size):
            self._parts.clear()

    async def _batches(
        self, response: aiohttp.ClientResponse, offset: int, end: int
    ) -> AsyncIterator[tuple[int, list[bytes], int]]:
        """Yield ``(offset, pieces, num_bytes)`` in order, each worth one write; nothing from ``end`` on."""
        batch_bytes = max(64 * 1024, min(_MIB, self._size // 1024))
        pieces: list[bytes] = []
        num_bytes, flushed_s = 0, time.monotonic()
        try:
            while offset + num_bytes < end and (piece := await response.content.readany()):
                pieces.append(piece[: end - offset - num_bytes])
                num_bytes += len(pieces[-1])
                if num_bytes >= batch_bytes or time.monotonic() - flushed_s > _FLUSH_S:
                    yield offset, pieces, num_bytes
                    offset, pieces, num_bytes, flushed_s = offset + num_bytes, [], 0, time.monotonic()
        except (aiohttp.ClientError, ConnectionError, TimeoutError):
            # What came before the link broke is good; keep it, then say so.
            if num_bytes:
                yield offset, pieces, num_bytes
            raise
        if num_bytes:
            yield offset, pieces, num_bytes

    async def _store(self, offset: int, pieces: list[bytes], num_bytes: int) -> None:
        await self._in_thread(self._partial.write, offset, pieces)
        self._partial.ranges.add(offset, offset + num_bytes)
        self.completed = max(self.completed, self._partial.ranges.num_bytes)
        self._grown.set()
        is_last = self._partial.ranges.num_bytes == self._size
        self._unsaved.add(num_bytes, is_last)
        self._unsynced.add(num_bytes, is_last)

    async def _keep_journal(self) -> None:
        """Keep the journal a small part of the blob behind what is there, until all of it is."""
        while self._partial.ranges.num_bytes < self._size:
            await self._unsaved.drain()
            await self._in_thread(self._partial.save_journal, self._partial.encode_journal())

    async def _keep_synced(self) -> None:
        """Write to the disk while bytes still arrive, so that the last sync has little left to do."""
        while self._partial.ranges.num_bytes < self._size:
            await self._unsynced.drain()
            await self._in_thread(self._partial.sync)

    async def _hash(self) -> str:
        sha, offset = hashlib.sha256(), 0
        while offset < self._size:
            end = min(self._partial.ranges.front(offset), offset + _HASH_STEP_BYTES)
            if end > offset:
                await self._in_thread(self._hash_range, sha, offset, end)
                offset = end
            else:
                self._grown.clear()
                await self._grown.wait()
        return f"sha256:{sha.hexdigest()}"

    def _hash_range(self, sha: Any, offset: int, end: int) -> None:
        view = memoryview(bytearray(min(_MIB, end - offset)))
        while offset < end:
            num_read = self._partial.read_into(view[: end - offset], offset)
            if num_read == 0:
                raise TransferError(f"partial download became shorter while in use: {self._partial.digest}")
            sha.update(view[:num_read])
            offset += num_read

    async def _forget_wrong(self, digest: str, num_repairs: int) -> None:
        """Drop the bytes that are wrong so that they are fetched again; raise if that was tried enough."""
        message = f"digest mismatch, file must be downloaded again: want {self._partial.digest}, got {digest}"
        chunks = await self._chunks()
        if chunks is None or not chunks.fits(self._size):
            self._partial.forget(0, self._size)
            if num_repairs >= 1:
                raise TransferError(message)
            log.warning(line.fields("download damaged", digest=self._partial.digest, again="whole"))
            return
        wrong = await self._in_thread(self._wrong_chunks, chunks)
        # Chunks that are all right in a blob that is wrong are the chunks of another blob.
        for start, end in wrong or [(0, self._size)]:
            self._partial.forget(start, end)
        if not wrong or num_repairs >= _MAX_REPAIRS:
            raise TransferError(message)
        log.warning(line.fields("download damaged", digest=self._partial.digest, chunks=len(wrong)))

    def _wrong_chunks(self, chunks: ChunkHashes) -> list[tuple[int, int]]:
        wrong = []
        for index, expected in enumerate(chunks.hashes):
            start = index * chunks.chunk_bytes
            end = min(start + chunks.chunk_bytes, self._size)
            sha = hashlib.sha256()
            self._hash_range(sha, start, end)
            if sha.hexdigest() != expected:
                wrong.append((start, end))
        return wrong


def _check_content_range(response: aiohttp.ClientResponse, part: _Part, size: int) -> None:
    header = response.headers.get("Content-Range", "")
    match = _CONTENT_RANGE.fullmatch(header)
    if match is None or int(match[1]) != part.start or int(match[2]) >= size:
        raise TransientError(f"registry answered range {part.start}-{part.end - 1} with: {header[:80]!r}")
    if match[3] not in ("*", str(size)):
        raise TransferError(f"blob has {match[3]} bytes at the registry, the manifest says {size}")


def _clamp_window(response: aiohttp.ClientResponse, window_bytes: int) -> None:
    """Bound what the kernel takes before it is read: a kill loses that, and it is sent twice."""
    transport = response.connection.transport if response.connection is not None else None
    connected = transport.get_extra_info("socket") if transport is not None else None
    if connected is not None:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_WINDOW_CLAMP, min(window_bytes, 2**30))


async def _together(coroutines: list[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Run all to the end and return their results; when one fails, cancel the others and raise its error."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
