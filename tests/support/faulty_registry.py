"""A registry with chosen faults, and models to put into it: what tests of transfers are checked against."""

import asyncio
import hashlib
import json
import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from ftd.names import ModelName

MANIFEST_V2 = "application/vnd.docker.distribution.manifest.v2+json"
_PIECE_BYTES = 4 * 1024


def digest_of(data: bytes) -> str:
    """Return ``sha256:<hex>`` of bytes, computed here and not by the code under test."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def manifest_of(
    config: bytes, layers: Sequence[bytes], media_type: str = "application/octet-stream"
) -> bytes:
    """Return manifest bytes for these blobs."""
    entries = [
        {"mediaType": media_type, "digest": digest_of(data), "size": len(data)} for data in (config, *layers)
    ]
    return json.dumps(
        {"schemaVersion": 2, "mediaType": MANIFEST_V2, "config": entries[0], "layers": entries[1:]}
    ).encode()


def ftw_config(blob: bytes, chunk_bytes: int) -> bytes:
    """Return a config that lists the chunk hashes of a blob, as an FTW config does."""
    chunks = [
        hashlib.sha256(blob[start : start + chunk_bytes]).hexdigest()
        for start in range(0, len(blob), chunk_bytes)
    ]
    entry = {"digest": digest_of(blob), "size": len(blob), "media_type": "x"}
    return json.dumps(
        {"format": "ftw", "blobs": [{**entry, "chunk_bytes": chunk_bytes, "chunks": chunks}]}
    ).encode()


@dataclass
class Faults:
    """What goes wrong. Counters count down; each fault is off by default."""

    cut_every: int = 0
    num_cuts: int = 0
    flip_at: int = -1
    num_flips: int = 0
    ignore_range: bool = False
    shift_content_range: int = 0
    stall_after: int = -1
    num_stalls: int = 0
    statuses: deque[int] = field(default_factory=deque)
    redirect_blobs_to: str = ""
    gate: asyncio.Event | None = None
    gate_after: int = 0
    extra_headers: dict[str, str] = field(default_factory=dict)


class FaultyRegistry:
    """Manifests and blobs in memory, served with faults; records every request and the blob bytes it sent."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, bytes] = {}
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.num_sent = 0
        self.reached_gate = asyncio.Event()
        self.before: Callable[[web.Request], web.StreamResponse | None] = lambda request: None
        self.port = 0
        self._runner: web.AppRunner | None = None

    def add(self, config: bytes, layers: Sequence[bytes], model: str = "m", tag: str = "latest") -> ModelName:
        """Serve a model and return its name."""
        for data in (config, *layers):
            self.blobs[digest_of(data)] = data
        return self.add_manifest(manifest_of(config, layers), model, tag)

    def add_manifest(self, raw: bytes, model: str = "m", tag: str = "latest") -> ModelName:
        """Serve manifest bytes, whatever they are, and return the model's name."""
        self.manifests[f"library/{model}:{tag}"] = raw
        return ModelName(f"127.0.0.1:{self.port}", "library", model, tag)

    async def start(self) -> None:
        """Listen on a free port of 127.0.0.1."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Stop listening."""
        if self.faults.gate is not None:
            self.faults.gate.set()
        if self._runner is not None:
            await self._runner.cleanup()

    def blob_requests(self) -> list[dict[str, str]]:
        """Return the headers of the requests for blobs, in order."""
        return [headers for method, path, headers in self.requests if method == "GET" and "/blobs/" in path]

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.path_qs, dict(request.headers)))
        if (answer := self.before(request)) is not None:
            return answer
        if match := re.fullmatch(r"/v2/(.+)/manifests/([^/]+)", request.path):
            raw = self.manifests.get(f"{match[1]}:{match[2]}")
            if raw is None:
                return web.json_response({"errors": [{"code": "MANIFEST_UNKNOWN"}]}, status=404)
            return web.Response(body=raw, content_type=MANIFEST_V2, headers=self.faults.extra_headers)
        if match := re.fullmatch(r"/(?:v2/(?:.+)/blobs|direct)/([^/]+)", request.path):
            return await self._blob(request, match[1])
        return web.Response(status=404)

    async def _blob(self, request: web.Request, digest: str) -> web.StreamResponse:
        faults = self.faults
        if faults.statuses:
            return web.Response(status=faults.statuses.popleft(), text="told to fail")
        if faults.redirect_blobs_to and not request.path.startswith("/direct"):
            return web.Response(status=307, headers={"Location": faults.redirect_blobs_to + digest})
        data = self.blobs.get(digest)
        if data is None:
            return web.Response(status=404)
        start, end = 0, len(data)
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range", ""))
        response = web.StreamResponse()
        if match and not faults.ignore_range:
            start, end = int(match[1]), int(match[2]) + 1
            response.set_status(206)
            shifted = start + faults.shift_content_range
            response.headers["Content-Range"] = f"bytes {shifted}-{end - 1}/{len(data)}"
        response.content_length = end - start
        await response.prepare(request)
        await self._send(request, response, data, start, end)
        return response

    async def _send(
        self, request: web.Request, response: web.StreamResponse, data: bytes, start: int, end: int
    ) -> None:
        faults, sent = self.faults, 0
        while start < end:
            piece = bytearray(data[start : min(end, start + _PIECE_BYTES)])
            if start <= faults.flip_at < start + len(piece) and faults.num_flips > 0:
                faults.num_flips -= 1
                piece[faults.flip_at - start] ^= 1
            if faults.gate is not None and self.num_sent >= faults.gate_after:
                self.reached_gate.set()
                await faults.gate.wait()
            await response.write(bytes(piece))
            self.num_sent += len(piece)
            start += len(piece)
            sent += len(piece)
            if faults.num_cuts > 0 and sent >= faults.cut_every:
                faults.num_cuts -= 1
                assert request.transport is not None
                request.transport.close()
                return
            if faults.num_stalls > 0 and sent >= faults.stall_after:
                faults.num_stalls -= 1
                await asyncio.Event().wait()


def files_in(folder: Path) -> list[str]:
    """Return the names of the files in a folder of blobs, sorted."""
    return sorted(path.name for path in folder.iterdir())
