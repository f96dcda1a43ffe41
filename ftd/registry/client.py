"""Pull and push of models, told in Ollama's status objects, in Ollama's order.

One ``RegistryClient`` serves a process: it holds the table that lets many pulls of a blob share one download.
"""

import asyncio
import contextlib
import hashlib
import shutil
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from yarl import URL

from ftd.config import RegistryConfig
from ftd.environment import state_dir
from ftd.errors import (
    CorruptData,
    Forbidden,
    FtdError,
    InsufficientSpace,
    InvalidName,
    InvalidRequest,
    ModelNotFound,
    NotFound,
    TransferError,
)
from ftd.names import ModelName, parse_name
from ftd.registry.addresses import AddressPolicy
from ftd.registry.auth import Authorizer, SigningKey, load_credentials
from ftd.registry.blobs import MAX_READ_BYTES
from ftd.registry.connection import Connection, Limits, Source, read_limited, retrying, status_error
from ftd.registry.download import ChunkHashes
from ftd.registry.manifest import MAX_MANIFEST_BYTES, MEDIA_TYPES, Descriptor, Manifest, parse_manifest
from ftd.registry.parts import held_bytes
from ftd.registry.store import Store
from ftd.registry.transfer import BlobRequest, Downloads
from ftd.registry.upload import BlobUpload
from ftd.units import format_bytes

Status = dict[str, Any]


class _ChunkedBlob(msgspec.Struct):
    digest: str
    chunk_bytes: int
    chunks: list[str]


class _ChunkedConfig(msgspec.Struct):
    """The one part of an FTW config that a transfer looks at."""

    blobs: list[_ChunkedBlob]


def parse_chunk_hashes(config: bytes) -> Mapping[str, ChunkHashes]:
    """Return the chunk hashes that a config lists, by blob digest; none if it is not an FTW config."""
    try:
        blobs = msgspec.json.decode(config, type=_ChunkedConfig).blobs
    except msgspec.DecodeError:
        return {}
    return {blob.digest: ChunkHashes(blob.chunk_bytes, tuple(blob.chunks)) for blob in blobs}


@dataclass(frozen=True, slots=True)
class _Operation:
    """One pull or push: the name, where it leads, and who we are there."""

    name: ModelName
    source: Source
    connect: Callable[[], Connection]

    def path(self, kind: str, reference: str) -> str:
        return f"/v2/{self.name.repository}/{kind}/{reference}"


class RegistryClient:
    """Moves models between the store and registries. Lives on one event loop; make one per process."""

    def __init__(
        self,
        store: Store,
        config: RegistryConfig,
        *,
        key_dir: Path | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._store = store
        self._config = config
        self._key_dir = key_dir or state_dir()
        self._key = SigningKey(self._key_dir)
        self._limits = limits or Limits()
        self._downloads = Downloads(store.blobs, self._limits, config.transfer_streams)

    async def pull(
        self, name: ModelName, insecure: bool = False, allow_loopback: bool = False
    ) -> AsyncGenerator[Status, None]:
        """Fetch a model and yield status objects; close the generator to leave (what arrived is kept).

        ``insecure`` uses plain http. ``allow_loopback`` says that the caller is on this machine: together
        with ``insecure`` the registry may be on it too.
        """
        yield {"status": "pulling manifest"}
        operation = self._operation(name, insecure, allow_loopback)
        async with operation.connect() as connection:
            manifest = await retrying(self._limits, lambda: self._fetch_manifest(connection, operation))
        with self._store.hold(entry.digest for entry in manifest.blobs):
            await asyncio.to_thread(self._check_before_download, manifest)
            for entry in manifest.blobs:
                async with contextlib.aclosing(self._pull_blob(operation, manifest, entry)) as lines:
                    async for line in lines:
                        yield line
            yield {"status": "verifying sha256 digest"}
            yield {"status": "writing manifest"}
            replaced = await asyncio.to_thread(self._replaced_blobs, name)
            await asyncio.to_thread(self._store.write, name, manifest)
        removed = await asyncio.to_thread(self._store.prune, () if self._config.no_prune else replaced)
        if removed:
            yield {"status": "removing unused layers"}
        yield {"status": "success"}

    async def push(
        self, name: ModelName, insecure: bool = False, allow_loopback: bool = False
    ) -> AsyncGenerator[Status, None]:
        """Send a model to the registry in its name and yield status objects."""
        yield {"status": "retrieving manifest"}
        try:
            manifest = await asyncio.to_thread(self._store.read, name)
        except FtdError:
            yield {"status": "couldn't retrieve manifest"}
            raise
        operation = self._operation(name, insecure, allow_loopback)
        async with operation.connect() as connection:
            with self._store.hold(entry.digest for entry in manifest.blobs):
                for entry in manifest.blobs:
                    async with contextlib.aclosing(self._push_blob(connection, operation, entry)) as lines:
                        async for line in lines:
                            yield line
            yield {"status": "pushing manifest"}
            await retrying(self._limits, lambda: self._put_manifest(connection, operation, manifest))
        yield {"status": "success"}

    def _operation(self, name: ModelName, insecure: bool, allow_loopback: bool) -> _Operation:
        if name.scheme == "http" and not insecure:
            raise InvalidRequest("insecure protocol http", "say insecure to use plain http")
        try:
            registry = URL(f"{'http' if insecure else 'https'}://{name.host}/")
            host, port = str(registry.host), registry.port or 0
        except ValueError as exc:
            raise InvalidName(
                "invalid model name", f"host {name.host!r:.100} is not a network address"
            ) from exc
        policy = AddressPolicy(
            self._config.allow_private_registries,
            f"{host.lower()}:{port}" if insecure and allow_loopback else "",
        )
        if insecure and not allow_loopback and not policy.lists(host, port):
            raise Forbidden(
                f"plain http is not allowed for callers from elsewhere: {name.host}",
                "add the host to FTD_PRIVATE_REGISTRIES",
            )
        source = Source(registry, policy)
        authorizer = Authorizer(self._key, load_credentials(self._key_dir))
        num_streams = self._config.transfer_streams

        def connect() -> Connection:
            return Connection(source, authorizer, self._limits, num_streams)

        return _Operation(name, source, connect)

    async def _fetch_manifest(self, connection: Connection, operation: _Operation) -> Manifest:
        url = operation.source.url(operation.path("manifests", operation.name.tag))
        async with connection.request("GET", url, headers={"Accept": ", ".join(MEDIA_TYPES)}) as response:
            if response.status != 200:
                error = await status_error(response, "pull model manifest")
                if isinstance(error, NotFound):
                    name = operation.name
                    hint = f"check the name: {name.host} has no {name.repository}:{name.tag}"
                    raise ModelNotFound(error.message, hint)
                raise error
            raw = await read_limited(response, MAX_MANIFEST_BYTES)
            stated = response.headers.get("Docker-Content-Digest", "")
        digest = f"sha256:{hashlib.sha256(raw).hexdigest()}"
        if stated.startswith("sha256:") and stated != digest:
            raise TransferError(f"pull model manifest: digest mismatch, want {stated:.80}, got {digest}")
        try:
            return parse_manifest(raw)
        except CorruptData as exc:
            raise TransferError(f"pull model manifest: {exc.message}", exc.hint) from exc

    def _check_before_download(self, manifest: Manifest) -> None:
        """Drop stored blobs that are damaged; raise InsufficientSpace if what is missing does not fit."""
        blobs = self._store.blobs
        needed = 0
        for entry in manifest.blobs:
            if blobs.has(entry.digest):
                self._check_stored(entry)
                blobs.touch(entry.digest)
            if not blobs.has(entry.digest):
                needed += entry.size - held_bytes(blobs, entry.digest, entry.size)
        free = shutil.disk_usage(blobs.folder).free
        if needed > free:
            raise InsufficientSpace(
                f"not enough space in {self._store.models_dir}: "
                f"{format_bytes(needed)} ({needed} bytes) needed, "
                f"{format_bytes(free)} ({free} bytes) free",
                "remove models or set FTD_MODELS to a larger disk",
            )

    def _check_stored(self, entry: Descriptor) -> None:
        """Drop a stored blob of another size, or other bytes; of weights, which take long to hash, the size
        decides.
        """
        blobs = self._store.blobs
        size = blobs.size(entry.digest)
        if size == entry.size > MAX_READ_BYTES:
            return
        if not blobs.verify(entry.digest):
            blobs.remove(entry.digest)
        elif size != entry.size:
            raise TransferError(f"blob {entry.digest} has {size} bytes, the manifest says {entry.size}")

    async def _pull_blob(
        self, operation: _Operation, manifest: Manifest, entry: Descriptor
    ) -> AsyncGenerator[Status, None]:
        async def chunks() -> ChunkHashes | None:
            return await self._chunk_hashes(operation, manifest, entry)

        path = operation.path("blobs", entry.digest)
        request = BlobRequest(entry, operation.source, path, operation.connect, chunks)
        reported = -1
        async with contextlib.aclosing(self._downloads.fetch(request)) as fetch:
            async for completed in fetch:
                if completed != reported:
                    reported = completed
                    yield _progress("pulling", entry, completed)

    async def _chunk_hashes(
        self, operation: _Operation, manifest: Manifest, entry: Descriptor
    ) -> ChunkHashes | None:
        """Fetch the config, if it is another blob than this one, and look the chunk hashes up in it."""
        config = manifest.config
        if entry.digest == config.digest or config.size > MAX_READ_BYTES:
            return None
        async with contextlib.aclosing(self._pull_blob(operation, manifest, config)) as lines:
            async for _ in lines:
                pass
        data = await asyncio.to_thread(self._store.blobs.read, config.digest)
        return parse_chunk_hashes(data).get(entry.digest)

    def _replaced_blobs(self, name: ModelName) -> Sequence[str]:
        try:
            return [entry.digest for entry in self._store.read(name).blobs]
        except (ModelNotFound, CorruptData):
            return []

    async def _push_blob(
        self, connection: Connection, operation: _Operation, entry: Descriptor
    ) -> AsyncGenerator[Status, None]:
        upload = BlobUpload(self._store.blobs, entry, operation.name.repository, connection, self._limits)
        task = asyncio.create_task(upload.run(_mount_source(entry, operation.name)))
        reported = -1
        try:
            while not task.done():
                if upload.completed != reported:
                    reported = upload.completed
                    yield _progress("pushing", entry, reported)
                await asyncio.wait({task}, timeout=self._limits.progress_s)
            task.result()
            if reported < entry.size:
                yield _progress("pushing", entry, entry.size)
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _put_manifest(self, connection: Connection, operation: _Operation, manifest: Manifest) -> None:
        url = operation.source.url(operation.path("manifests", operation.name.tag))
        headers = {"Content-Type": manifest.media_type}
        async with connection.request("PUT", url, headers=headers, body=manifest.raw) as response:
            if response.status not in (200, 201, 202, 204):
                raise await status_error(response, "push model manifest")


def _mount_source(entry: Descriptor, name: ModelName) -> str:
    """Return the repository on the same registry that the blob came from, or ""."""
    try:
        origin = parse_name(entry.origin)
    except InvalidName:
        return ""
    is_other = origin.host == name.host and origin.repository != name.repository
    return origin.repository if is_other else ""


def _progress(verb: str, entry: Descriptor, completed: int) -> Status:
    digest = entry.digest
    line: Status = {"status": f"{verb} {digest[7:19]}", "digest": digest, "total": entry.size}
    if completed:
        line["completed"] = completed
    return line
