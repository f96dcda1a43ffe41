"""Create a model: from uploaded files or from another model, with the fields of a Modelfile as layers.

    check_request(body)   what can be refused before anything starts
    create(…)             the operation as a stream of status objects, Ollama's texts; raises FtdError

All blocking work runs in threads. A create that fails or is abandoned leaves the store as it was: no
manifest, no new blob, and no upload either (a failed create of a large file must not fill the disk).
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ftd import log
from ftd.chat import gojson, options
from ftd.chat.renderer import Renderer
from ftd.chat.templates import check_template
from ftd.daemon import modelinfo as info
from ftd.daemon.create_request import CreateRequest
from ftd.daemon.recorder import Recorder
from ftd.errors import BlobNotFound, InvalidRequest, ModelNotFound, Unsupported
from ftd.ftw.import_gguf import import_gguf
from ftd.ftw.import_safetensors import import_safetensors
from ftd.ftw.imported import ImportedModel, Progress, conversion_key
from ftd.ftw.sink import BlobSink
from ftd.names import ModelName, parse_name
from ftd.registry.manifest import Descriptor, Manifest, build_manifest
from ftd.registry.store import Store

_log = logging.getLogger(__name__)

Status = dict[str, Any]
Pull = Callable[[ModelName], AsyncGenerator[Status, None]]
# Progress of work on local files carries this digest, as Ollama's does: clients show a bar for it
LOCAL_DIGEST = "0" * 19
PROGRESS_S = 0.1
_TEXT_LAYERS = (info.MEDIA_GO_TEMPLATE, info.MEDIA_JINJA, info.MEDIA_SYSTEM, info.MEDIA_LICENSE)
_KEPT_LAYERS = (*_TEXT_LAYERS, info.MEDIA_PARAMS, info.MEDIA_MESSAGES)


class _Cancelled(Exception):
    """Thrown into the import when nobody waits for it any more."""


@dataclass(frozen=True, slots=True)
class _Source:
    """One import to be: what clients are told first, and the importer with all but the sink and progress."""

    status: str
    run: Callable[[BlobSink, Progress], ImportedModel]


@dataclass(slots=True)
class _Draft:
    """A manifest in the making. ``texts`` are layers not stored yet, ``kept`` inherited ones by type."""

    config: Descriptor
    weights: list[Descriptor]
    kept: dict[str, list[Descriptor]] = field(default_factory=dict)
    texts: list[tuple[str, bytes]] = field(default_factory=list)

    def replace(self, media_types: Sequence[str], media_type: str, data: bytes) -> None:
        """Drop the inherited layers of ``media_types`` and add one."""
        for old in media_types:
            self.kept.pop(old, None)
        self.texts.append((media_type, data))


async def create(
    store: Store, request: CreateRequest, renderer: Renderer, pull: Pull | None = None
) -> AsyncGenerator[Status, None]:
    """Yield the status objects of a create; the last one is ``{"status": "success"}``.

    ``pull`` fetches a base model that is not in the store. Raises FtdError at any point; closing the
    generator stops the work, and the store is as before.
    """
    before = set(await asyncio.to_thread(lambda: list(store.blobs.digests())))
    uploads = sorted(set(request.files.values()))
    name = await asyncio.to_thread(store.resolve, request.name)
    done = False
    replaced: list[str] = []
    hold = contextlib.ExitStack()
    hold.enter_context(store.hold(uploads))
    recorder = Recorder(store, hold)
    try:
        if request.base:
            base = parse_name(request.base)
            if pull is not None and not await asyncio.to_thread(store.has, base):
                async with contextlib.aclosing(pull(base)) as pulling:
                    async for status in pulling:
                        if status.get("status") != "success":
                            yield status
            source = _from_model(store, base, recorder, renderer)
        else:
            source = _from_files(store, request, recorder, renderer)
        draft: _Draft | None = None
        async with contextlib.aclosing(source):
            async for item in source:
                if isinstance(item, _Draft):
                    draft = item
                else:
                    yield item
        assert draft is not None
        inherited = [layer.digest for group in draft.kept.values() for layer in group]
        hold.enter_context(store.hold([*inherited, *(layer.digest for layer in draft.weights)]))
        await _apply(store, draft, request, renderer)
        layers: list[Descriptor] = []
        for descriptor, is_new in await asyncio.to_thread(_store_layers, store, draft, recorder):
            verb = "creating new layer" if is_new else "using existing layer"
            yield {"status": f"{verb} {descriptor.digest}"}
            layers.append(descriptor)
        yield {"status": "writing manifest"}
        replaced = await asyncio.to_thread(_publish, store, name, build_manifest(draft.config, layers))
        done = True
        _log.info(log.fields("create done", model=name.display, layers=len(layers)))
    finally:
        hold.close()
        # An abandoned generator must still take back what it made before anybody goes on
        made = [] if done else [digest for digest in recorder.digests if digest not in before]
        # Or leaves it for a create like this one, which finds it when the daemon is back
        if done or not store.blobs.is_ending:
            await asyncio.shield(asyncio.to_thread(store.prune, [*made, *uploads, *replaced]))
    yield {"status": "success"}


async def _from_files(
    store: Store, request: CreateRequest, recorder: Recorder, renderer: Renderer
) -> AsyncGenerator[Status | _Draft, None]:
    source = await asyncio.to_thread(_source, store, request)
    imported: ImportedModel | None = None
    async with contextlib.aclosing(_import(source, recorder)) as steps:
        async for item in steps:
            if isinstance(item, dict):
                yield item
            else:
                imported = item
    assert imported is not None
    draft = _imported_draft(imported)
    if imported.chat_template and not request.template:
        await check_template(renderer, "jinja", imported.chat_template)
        draft.texts.append((info.MEDIA_JINJA, imported.chat_template.encode("utf-8")))
    elif not imported.chat_template and not request.template:
        yield {"status": "no chat template found, prompts will be sent as they are"}
    if imported.parameters and not request.parameters:
        draft.texts.append((info.MEDIA_PARAMS, _params(imported.parameters)))
    yield draft


def _imported_draft(imported: ImportedModel) -> _Draft:
    config = Descriptor(info.MEDIA_CONFIG, imported.config_digest, imported.config_size)
    return _Draft(config, [Descriptor(b.media_type, b.digest, b.size) for b in imported.blobs])


async def _from_model(
    store: Store, base: ModelName, recorder: Recorder, renderer: Renderer
) -> AsyncGenerator[Status | _Draft, None]:
    """Inherit everything from a stored model; one with GGUF layers is converted first."""
    manifest = await asyncio.to_thread(store.read, base)
    display = (await asyncio.to_thread(store.resolve, base)).display
    kept: dict[str, list[Descriptor]] = {}
    for layer in manifest.layers:
        if layer.media_type in _KEPT_LAYERS:
            kept.setdefault(layer.media_type, []).append(_inherited(layer, display))
    if manifest.config.media_type == info.MEDIA_CONFIG:
        weights = [_inherited(x, display) for x in manifest.layers if x.media_type not in _KEPT_LAYERS]
        yield _Draft(manifest.config, weights, kept)
        return
    digests = [layer.digest for layer in manifest.layers if layer.media_type == info.MEDIA_GGUF]
    if not digests:
        raise Unsupported(f"model has neither FTW nor GGUF weights: {display}")
    imported: ImportedModel | None = None
    source = _gguf(store, {str(number): digest for number, digest in enumerate(digests)})
    async with contextlib.aclosing(_import(source, recorder)) as steps:
        async for item in steps:
            if isinstance(item, dict):
                yield item
            else:
                imported = item
    assert imported is not None
    draft = _imported_draft(imported)
    draft.kept = kept
    if imported.chat_template:
        try:
            await check_template(renderer, "jinja", imported.chat_template)
        except InvalidRequest:
            if info.MEDIA_GO_TEMPLATE not in kept:
                raise
        else:
            draft.texts.append((info.MEDIA_JINJA, imported.chat_template.encode("utf-8")))
    yield draft


def _inherited(layer: Descriptor, base: str) -> Descriptor:
    return Descriptor(layer.media_type, layer.digest, layer.size, layer.origin or base, layer.name)


async def convert(store: Store, name: ModelName, renderer: Renderer) -> AsyncGenerator[Status, None]:
    """Replace the GGUF layers of a stored model (pulled from elsewhere) by FTW, if it has any."""
    manifest = await asyncio.to_thread(store.read, name)
    if manifest.config.media_type == info.MEDIA_CONFIG:
        return
    steps = create(store, CreateRequest(name=name, base=name.full), renderer)
    async with contextlib.aclosing(steps):
        async for status in steps:
            if status["status"] != "success":
                yield status


async def _import(source: _Source, sink: BlobSink) -> AsyncGenerator[Status | ImportedModel, None]:
    """Run the importer in a thread; yield its progress, then its result. Closing it stops the thread."""
    loop = asyncio.get_running_loop()
    progress: asyncio.Queue[tuple[int, int] | None] = asyncio.Queue()
    stop = threading.Event()
    last_s = 0.0

    def report(done_bytes: int, total_bytes: int) -> None:
        nonlocal last_s
        if stop.is_set():
            raise _Cancelled
        now_s = time.monotonic()
        if now_s - last_s >= PROGRESS_S or done_bytes == total_bytes:
            last_s = now_s
            loop.call_soon_threadsafe(progress.put_nowait, (done_bytes, total_bytes))

    def work() -> ImportedModel:
        try:
            return source.run(sink, report)
        finally:
            loop.call_soon_threadsafe(progress.put_nowait, None)

    yield {"status": source.status}
    task = asyncio.create_task(asyncio.to_thread(work))
    try:
        while (point := await progress.get()) is not None:
            yield {
                "status": "converting model",
                "digest": LOCAL_DIGEST,
                "total": point[1],
                "completed": point[0],
            }
        yield await task
    finally:
        stop.set()
        with contextlib.suppress(_Cancelled):
            await asyncio.shield(task)


def _gguf(store: Store, files: Mapping[str, str], quantization: str | None = None) -> _Source:
    paths = [store.blobs.path(files[name]) for name in sorted(files)]
    key = conversion_key(files, quantization)
    return _Source("parsing GGUF", lambda sink, report: import_gguf(paths, sink, report, quantization, key))


def _source(store: Store, request: CreateRequest) -> _Source:
    """Return how the uploaded files are imported; raise unless all are there and belong together."""
    files = request.files
    if not files:
        raise InvalidRequest("no files provided to convert")
    for name in sorted(files):
        if not store.blobs.has(files[name]):
            raise BlobNotFound(f"blob not found: {files[name]}", f"upload {name} first")
    if any(name.endswith((".safetensors", ".ftw")) for name in files):
        paths = {name: store.blobs.path(digest) for name, digest in files.items()}
        key = conversion_key(files, request.quantization)
        what = "FTW version 1" if any(name.endswith(".ftw") for name in files) else "safetensors"
        return _Source(
            f"converting {what}",
            lambda sink, report: import_safetensors(paths, sink, report, request.quantization, key),
        )
    _check_gguf(store, files)
    return _gguf(store, files, request.quantization)


def _check_gguf(store: Store, files: Mapping[str, str]) -> None:
    """Raise unless all ``files`` are GGUF."""
    for name in sorted(files):
        with store.blobs.open(files[name]) as file:
            magic = file.read(4)
        if magic != b"GGUF":
            if name.endswith(".gguf"):
                raise InvalidRequest(f"supplied file was not in GGUF format: {name}")
            raise Unsupported(f"unknown type: {name}", "give GGUF, safetensors or FreeToken's ftw files")


async def _apply(store: Store, draft: _Draft, request: CreateRequest, renderer: Renderer) -> None:
    """Put the fields of the request into the draft: replace, merge or append, each by its own rule."""
    if request.template:
        await check_template(renderer, "go", request.template)
        draft.replace(
            (info.MEDIA_GO_TEMPLATE, info.MEDIA_JINJA),
            info.MEDIA_GO_TEMPLATE,
            request.template.encode("utf-8"),
        )
    if request.system:
        draft.replace((info.MEDIA_SYSTEM,), info.MEDIA_SYSTEM, request.system.encode("utf-8"))
    if request.parameters:
        inherited = draft.kept.get(info.MEDIA_PARAMS, [])[-1:]
        merged: dict[str, Any] = {}
        for layer in inherited:
            merged |= await asyncio.to_thread(info.read_json, store, layer)
        merged |= options.check(request.parameters)
        params = await asyncio.to_thread(_params, merged)
        draft.replace((info.MEDIA_PARAMS,), info.MEDIA_PARAMS, params)
    if request.messages:
        lines = await asyncio.to_thread(_messages, request.messages)
        draft.replace((info.MEDIA_MESSAGES,), info.MEDIA_MESSAGES, lines)
    draft.texts += [(info.MEDIA_LICENSE, text.encode("utf-8")) for text in request.licenses]
    for media_type, data in draft.texts:
        if len(data) > info.MAX_TEXT_BYTES:
            what = media_type.rpartition(".")[2]
            raise InvalidRequest(
                f"too long for a model: {what} of {len(data)} bytes, the most are {info.MAX_TEXT_BYTES}",
                "shorten it",
            )


def _messages(messages: Sequence[Mapping[str, str]]) -> bytes:
    """Return messages as the list that ``gojson.dumps`` would write, one by one: there may be many."""
    return f"[{','.join(gojson.dumps(message, sort_keys=False) for message in messages)}]\n".encode()


def _params(parameters: Mapping[str, Any]) -> bytes:
    return (gojson.dumps(dict(parameters)) + "\n").encode("utf-8")


def _store_layers(store: Store, draft: _Draft, recorder: Recorder) -> list[tuple[Descriptor, bool]]:
    """Write the text layers; return all layers and whether each blob is new."""
    layers = [(layer, layer.digest in recorder.digests) for layer in draft.weights]
    layers += [(layer, False) for group in draft.kept.values() for layer in group]
    existing = set(store.blobs.digests())
    for media_type, data in draft.texts:
        with recorder.new() as writer:
            writer.write(data)
            digest, size = writer.commit()
        licenses = [layer.digest for layer, _ in layers if layer.media_type == info.MEDIA_LICENSE]
        if media_type == info.MEDIA_LICENSE and digest in licenses:
            continue  # a model's own Modelfile says again what is inherited
        layers.append((Descriptor(media_type, digest, size), digest not in existing))
    return layers


def _publish(store: Store, name: ModelName, manifest: Manifest) -> list[str]:
    """Write the manifest; return the blobs of the one that it replaces."""
    try:
        old = [entry.digest for entry in store.read(name).blobs]
    except ModelNotFound:
        old = []
    store.write(name, manifest)
    return old
