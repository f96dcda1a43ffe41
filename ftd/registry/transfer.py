"""Which downloads are under way: one for each blob, however many watch it.

A download starts with its first watcher, is shared by later ones, and is cancelled when the last of them
leaves; what arrived stays on disk and the next watcher goes on from there.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from ftd.errors import FtdError, TransferError
from ftd.registry.blobs import BlobStore
from ftd.registry.connection import Connection, Limits, Source
from ftd.registry.download import ChunkSource, Download
from ftd.registry.manifest import Descriptor
from ftd.registry.parts import PartialFile, held_bytes


@dataclass(frozen=True, slots=True)
class BlobRequest:
    """A blob wanted from a source: where it is, and how to reach it."""

    descriptor: Descriptor
    source: Source
    path: str
    connect: Callable[[], Connection]
    chunks: ChunkSource


class _Flight:
    """A download and its watchers."""

    def __init__(self, blobs: BlobStore, request: BlobRequest, limits: Limits, num_streams: int) -> None:
        self.source = request.source
        self.size = request.descriptor.size
        self.num_watchers = 0
        self.is_leaving = False
        self._num_held = held_bytes(blobs, request.descriptor.digest, self.size)
        self._download: Download | None = None
        self.task = asyncio.create_task(self._run(blobs, request, limits, num_streams))

    async def _run(self, blobs: BlobStore, request: BlobRequest, limits: Limits, num_streams: int) -> None:
        url = request.source.url(request.path)
        async with request.connect() as connection:
            partial = PartialFile.open(blobs, request.descriptor.digest, self.size)
            self._download = Download(partial, url, connection, request.chunks, limits)
            await self._download.run(num_streams)

    def progress(self) -> int:
        """Return how many bytes are there; never less than before."""
        return self._num_held if self._download is None else self._download.completed


class Downloads:
    """The table of downloads of one process. Lives on one event loop."""

    def __init__(self, blobs: BlobStore, limits: Limits, num_streams: int) -> None:
        self._blobs = blobs
        self._limits = limits
        self._num_streams = num_streams
        self._flights: dict[str, _Flight] = {}

    async def fetch(self, request: BlobRequest) -> AsyncGenerator[int, None]:
        """Download a blob or join the download of it; yield the bytes completed until the blob is there."""
        digest = request.descriptor.digest
        while not self._blobs.has(digest):
            flight = self._join(request)
            if flight.is_leaving:
                await asyncio.wait({flight.task})
                continue
            try:
                async with contextlib.aclosing(self._watch(digest, flight)) as watch:
                    async for completed in watch:
                        yield completed
            except FtdError:
                if flight.source == request.source:
                    raise
                # The one who started it asked another registry, which failed; ours may do better.
        yield request.descriptor.size

    def _join(self, request: BlobRequest) -> _Flight:
        digest, size = request.descriptor.digest, request.descriptor.size
        flight = self._flights.get(digest)
        if flight is None or flight.task.done():
            flight = _Flight(self._blobs, request, self._limits, self._num_streams)
            self._flights[digest] = flight
        elif flight.size != size:
            raise TransferError(f"two manifests give blob {digest} different sizes: {flight.size} and {size}")
        return flight

    async def _watch(self, digest: str, flight: _Flight) -> AsyncGenerator[int, None]:
        flight.num_watchers += 1
        try:
            while not flight.task.done():
                yield flight.progress()
                await asyncio.wait({flight.task}, timeout=self._limits.progress_s)
            flight.task.result()
        finally:
            flight.num_watchers -= 1
            if flight.num_watchers == 0 and not flight.task.done():
                flight.is_leaving = True
                flight.task.cancel()
                await asyncio.wait({flight.task})
            if flight.task.done() and self._flights.get(digest) is flight:
                del self._flights[digest]
