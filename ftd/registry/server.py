"""A registry: the OCI distribution protocol over a Store, for ``ftd push``, Ollama and any OCI client.

    GET  /v2/                              POST  /v2/N/blobs/uploads/[?mount=D&from=N][?digest=D]
    GET  /v2/_catalog                      GET PATCH PUT DELETE  /v2/N/blobs/uploads/ID
    GET  /v2/N/tags/list                   HEAD GET  /v2/N/blobs/D
                                           HEAD GET PUT  /v2/N/manifests/TAG-or-digest

A repository N is ``namespace/model``, or ``model`` alone for the default namespace. It is the same model as
that name has in the store on the server's own machine: the served store keeps manifests under one host, by
default the default host, so what was pulled or created here can be pulled from here, and what is pushed can
be run here.
"""

import asyncio
import contextlib
import errno
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from urllib.parse import urlencode

import msgspec
from aiohttp import web

from ftd import errors
from ftd.names import DEFAULT_HOST, DEFAULT_NAMESPACE, ModelName, parse_digest
from ftd.registry import api_errors
from ftd.registry.manifest import MAX_MANIFEST_BYTES, Manifest, parse_manifest
from ftd.registry.store import Store
from ftd.registry.uploads import Uploads, UploadSession

_BATCH_BYTES = 2 * 2**20
# A peer that vanished without a word must not keep its upload claimed for ever.
_BODY_STALL_S = 60.0
_MAX_PAGE = 1000
_DEFAULT_PAGE = 100
_CONTENT_RANGE = re.compile(r"(?:bytes )?(\d{1,19})-(\d{1,19})(?:/(?:\d{1,19}|\*))?", re.ASCII)
_DIGEST_TAG = re.compile(r"sha256-[0-9a-f]{64}", re.ASCII)
_N = r"/v2/{name:[^/]+(?:/[^/]+)*}"


def make_app(store: Store, host: str = DEFAULT_HOST) -> web.Application:
    """Return the registry as an application; manifests are those that ``store`` has under ``host``."""
    handlers = _Handlers(store, host)
    app = web.Application(middlewares=[_render_errors], client_max_size=MAX_MANIFEST_BYTES)
    for pattern in ("/v2/", "/v2"):
        app.router.add_get(pattern, handlers.ping)
    app.router.add_get("/v2/_catalog", handlers.catalog)
    app.router.add_get(_N + "/tags/list", handlers.tags)
    for pattern in ("/blobs/uploads/", "/blobs/uploads"):
        app.router.add_post(_N + pattern, handlers.start_upload)
    upload = app.router.add_resource(_N + "/blobs/uploads/{upload_id:[^/]+}")
    upload.add_route("GET", handlers.upload_status)
    upload.add_route("PATCH", handlers.append)
    upload.add_route("PUT", handlers.commit)
    upload.add_route("DELETE", handlers.cancel)
    app.router.add_get(_N + "/blobs/{digest:[^/]+}", handlers.blob)
    app.router.add_get(_N + "/manifests/{reference:[^/]+}", handlers.manifest)
    app.router.add_put(_N + "/manifests/{reference:[^/]+}", handlers.put_manifest)
    return app


@web.middleware
async def _render_errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    headers = {"Docker-Distribution-Api-Version": "registry/2.0"}
    try:
        response = await handler(request)
    except errors.FtdError as exc:
        if isinstance(exc, errors.UploadOutOfOrder):
            headers |= _session_headers(request, request.match_info["upload_id"], exc.offset)
        return api_errors.response(exc, headers)
    except api_errors.Refused as exc:
        return api_errors.refusal(exc, headers)
    except OSError as exc:
        if exc.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return api_errors.response(errors.InsufficientSpace("no space left at the registry"), headers)
    if not response.prepared:
        response.headers.update(headers)
    return response


def _json(value: object, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json", headers=headers)


def _absolute(request: web.Request, path: str) -> str:
    return f"{request.scheme}://{request.host}{path}"


def _session_headers(request: web.Request, upload_id: str, offset: int) -> dict[str, str]:
    """The state of a session; ``Range: 0-0`` stands for nothing as well as for one byte, as everywhere."""
    path = f"/v2/{request.match_info['name']}/blobs/uploads/{upload_id}"
    return {
        "Location": _absolute(request, path),
        "Docker-Upload-UUID": upload_id,
        "Range": f"0-{max(0, offset - 1)}",
    }


def _page(request: web.Request, names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Cut one page (``n``, ``last``) out of the sorted names; the headers link to the next."""
    text = request.query.get("n", str(_DEFAULT_PAGE))
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
        raise errors.InvalidOption(f"n is not a number: {text[:40]!r}")
    num, last = min(int(text), _MAX_PAGE), request.query.get("last", "")
    rest = [name for name in sorted(set(names)) if name > last]
    page, headers = rest[:num], {}
    if len(rest) > num > 0:
        query = urlencode({"n": num, "last": page[-1]})
        headers["Link"] = f'<{request.path}?{query}>; rel="next"'
    return page, headers


class _Handlers:
    """The routes. Blocking work runs in threads; what touches a claimed session is never interrupted."""

    def __init__(self, store: Store, host: str) -> None:
        self._store = store
        self._host = host
        self._uploads = Uploads(store.blobs)

    def _name(self, request: web.Request, tag: str = "latest") -> ModelName:
        parts = request.match_info["name"].split("/")
        if len(parts) > 2:
            raise errors.InvalidName(f"repository has more than two parts: {'/'.join(parts):.200}")
        namespace = parts[0] if len(parts) == 2 else DEFAULT_NAMESPACE
        return ModelName(self._host, namespace, parts[-1], tag)

    async def ping(self, request: web.Request) -> web.Response:
        return _json({})

    async def catalog(self, request: web.Request) -> web.Response:
        models = await asyncio.to_thread(self._store.list)
        names = [model.name.repository for model in models if model.name.host == self._host]
        page, headers = _page(request, names)
        return _json({"repositories": page}, headers)

    async def tags(self, request: web.Request) -> web.Response:
        name = await asyncio.to_thread(self._store.resolve, self._name(request))
        found = await asyncio.to_thread(self._store.tags, name)
        tags = [tag for tag in found if not _DIGEST_TAG.fullmatch(tag)]
        if not found:
            raise api_errors.UnknownRepository(f"repository not found: {name.repository}")
        page, headers = _page(request, tags)
        return _json({"name": request.match_info["name"], "tags": page}, headers)

    async def blob(self, request: web.Request) -> web.StreamResponse:
        self._name(request)
        digest = parse_digest(request.match_info["digest"])
        if not await asyncio.to_thread(self._store.blobs.has, digest):
            raise errors.BlobNotFound(f"blob not found: {digest}")
        self._store.blobs.touch(digest)
        headers = {
            "Docker-Content-Digest": digest,
            "Content-Type": "application/octet-stream",
            "Accept-Ranges": "bytes",
            # Ollama's client fetches from the Location of the answer, even of a 200.
            "Location": _absolute(request, f"/v2/{request.match_info['name']}/blobs/{digest}"),
            "Docker-Distribution-Api-Version": "registry/2.0",
        }
        return web.FileResponse(self._store.blobs.path(digest), headers=headers)

    async def manifest(self, request: web.Request) -> web.Response:
        manifest = await asyncio.to_thread(self._find_manifest, request)
        headers = {"Docker-Content-Digest": f"sha256:{manifest.digest}", "Content-Type": manifest.media_type}
        return web.Response(body=manifest.raw, headers=headers)

    def _find_manifest(self, request: web.Request) -> Manifest:
        reference = request.match_info["reference"]
        if ":" not in reference:
            return self._store.read(self._name(request, reference))
        digest = parse_digest(reference)
        name = self._store.resolve(self._name(request))
        for tag in self._store.tags(name):
            with contextlib.suppress(errors.NotFound, errors.CorruptData):
                manifest = self._store.read(name.with_tag(tag))
                if f"sha256:{manifest.digest}" == digest:
                    return manifest
        raise errors.ModelNotFound(f"manifest not found: {digest}")

    async def put_manifest(self, request: web.Request) -> web.Response:
        reference = request.match_info["reference"]
        try:
            raw = await request.read()
            manifest = parse_manifest(raw)
        except (errors.CorruptData, api_errors.TooLarge) as exc:
            raise api_errors.ManifestInvalid(str(exc)) from exc
        digest = f"sha256:{manifest.digest}"
        if ":" in reference and parse_digest(reference) != digest:
            raise errors.DigestMismatch(f'digest mismatch, expected "{reference}", got "{digest}"')
        # A manifest put by digest alone is kept under a tag that spells the digest; the list leaves it out.
        name = self._name(request, reference.replace(":", "-", 1))
        try:
            await asyncio.to_thread(self._store.write, name, manifest)
        except errors.BlobNotFound as exc:
            raise api_errors.ManifestBlobUnknown(exc.message, "upload the blob first") from exc
        path = f"/v2/{request.match_info['name']}/manifests/{digest}"
        headers = {"Docker-Content-Digest": digest, "Location": _absolute(request, path)}
        return web.Response(status=201, headers=headers)

    async def start_upload(self, request: web.Request) -> web.Response:
        self._name(request)
        mount = request.query.get("mount")
        if mount is not None and await asyncio.to_thread(self._store.blobs.has, parse_digest(mount)):
            self._store.blobs.touch(mount)
            return self._created(request, mount)
        digest = parse_digest(request.query["digest"]) if "digest" in request.query else None
        upload_id = self._uploads.start()
        if digest is None:
            return web.Response(status=202, headers=_session_headers(request, upload_id, 0))
        with self._uploads.claim(upload_id) as session:
            try:
                await self._receive(request, session)
                await _uninterrupted(session.commit, digest)
            finally:
                if not session.is_closed:
                    session.drop()
        return self._created(request, digest)

    async def upload_status(self, request: web.Request) -> web.Response:
        upload_id = request.match_info["upload_id"]
        headers = _session_headers(request, upload_id, self._uploads.offset(upload_id))
        return web.Response(status=204, headers=headers)

    async def append(self, request: web.Request) -> web.Response:
        upload_id = request.match_info["upload_id"]
        with self._uploads.claim(upload_id) as session:
            session.check_start(_start_of(request))
            await self._receive(request, session)
            headers = _session_headers(request, upload_id, session.offset)
        return web.Response(status=202, headers=headers)

    async def commit(self, request: web.Request) -> web.Response:
        upload_id = request.match_info["upload_id"]
        digest = parse_digest(request.query.get("digest", ""))
        with self._uploads.claim(upload_id) as session:
            session.check_start(_start_of(request))
            await self._receive(request, session)
            await _uninterrupted(session.commit, digest)
        return self._created(request, digest)

    async def cancel(self, request: web.Request) -> web.Response:
        self._uploads.cancel(request.match_info["upload_id"])
        return web.Response(status=204)

    def _created(self, request: web.Request, digest: str) -> web.Response:
        path = f"/v2/{request.match_info['name']}/blobs/{digest}"
        headers = {"Docker-Content-Digest": digest, "Location": _absolute(request, path)}
        return web.Response(status=201, headers=headers)

    async def _receive(self, request: web.Request, session: UploadSession) -> None:
        """Append the body as it comes; what came before a broken link stays, so that the client can go on."""
        pieces: list[bytes] = []
        num_bytes = 0
        try:
            while True:
                async with asyncio.timeout(_BODY_STALL_S):
                    piece = await request.content.readany()
                if not piece:
                    return
                pieces.append(piece)
                num_bytes += len(piece)
                if num_bytes >= _BATCH_BYTES:
                    batch, pieces, num_bytes = pieces, [], 0
                    await _append(session, batch)
        except TimeoutError as exc:
            raise errors.InvalidRequest(f"no bytes came for {_BODY_STALL_S:.0f} seconds") from exc
        finally:
            await _append(session, pieces)


async def _append(session: UploadSession, pieces: list[bytes]) -> None:
    def work() -> None:
        for piece in pieces:
            session.append(piece)

    if pieces:
        await _uninterrupted(work)


def _start_of(request: web.Request) -> int | None:
    """Return where the body says it starts, or None; raise if that disagrees with its length."""
    header = request.headers.get("Content-Range")
    if header is None:
        return None
    match = _CONTENT_RANGE.fullmatch(header)
    if match is None:
        raise errors.InvalidRequest(f"invalid content range: {header[:80]!r}", "write it as first-last")
    start, end = int(match[1]), int(match[2]) + 1
    if request.content_length not in (None, end - start):
        raise errors.InvalidRequest(f"content range {header} does not match length {request.content_length}")
    return start


async def _uninterrupted(function: Callable[..., None], *arguments: object) -> None:
    """Run in a thread and wait for its end even when cancelled: the thread works on an open file."""
    work = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait({work})
        raise
