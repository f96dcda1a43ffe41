"""Routes about models as things: list, running, show, copy, delete; and the daemon's own state."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from aiohttp import web

from ftd.api import jsontext
from ftd.api.jsontext import Fields
from ftd.daemon.catalog import parse_model_name
from ftd.daemon.loaded import LoadedModel
from ftd.daemon.middleware import is_anthropic
from ftd.daemon.responses import json_response, object_response, plain_object_response, read_fields
from ftd.daemon.services import OLLAMA_VERSION, SERVICES, Services
from ftd.daemon.show import describe
from ftd.engine.messages import Stats
from ftd.errors import InvalidName, InvalidRequest, ModelNotFound
from ftd.registry.store import StoredModel

_FOREVER = timedelta(days=106751)  # 2**63 ns, as Ollama says "never"


def add_routes(app: web.Application) -> None:
    """Register the routes of this module."""
    router = app.router
    router.add_get("/", root)
    router.add_get("/health", health, allow_head=False)
    router.add_get("/ready", ready, allow_head=False)
    router.add_get("/api/version", version)
    router.add_get("/api/status", status, allow_head=False)
    router.add_get("/api/tags", tags)
    router.add_get("/api/ps", running, allow_head=False)
    router.add_post("/api/show", show)
    router.add_post("/api/copy", copy)
    router.add_delete("/api/delete", delete)
    router.add_get("/v1/models", openai_models, allow_head=False)
    router.add_get("/v1/models/{id:.+}", openai_model, allow_head=False)


async def root(request: web.Request) -> web.Response:
    """Say that we are here, in the words that clients look for."""
    return web.Response(text="Ollama is running")


async def health(request: web.Request) -> web.Response:
    """The daemon answers."""
    return object_response({"status": "ok"})


async def ready(request: web.Request) -> web.Response:
    """Whether a request would be worked on at once; while a model loads it would wait."""
    is_loading = request.app[SERVICES].manager.is_loading
    return object_response({"status": "loading"}, 503) if is_loading else object_response({"status": "ready"})


async def version(request: web.Request) -> web.Response:
    """The version of Ollama's API that is spoken."""
    return object_response({"version": OLLAMA_VERSION})


async def status(request: web.Request) -> web.Response:
    """There is no cloud."""
    return object_response({"cloud": {"disabled": True, "source": "none"}})


async def tags(request: web.Request) -> web.Response:
    """All stored models, newest first."""
    services = request.app[SERVICES]
    models = await asyncio.to_thread(_tag_rows, services)
    return object_response({"models": models})


def _tag_rows(services: Services) -> list[dict[str, Any]]:
    return [_tag_row(services, stored) for stored in services.store.list()]


def _tag_row(services: Services, stored: StoredModel) -> dict[str, Any]:
    details, capabilities = services.summaries.get(stored.name, stored.manifest)
    return {
        "name": stored.name.display,
        "model": stored.name.display,
        "modified_at": jsontext.local_time(stored.modified),
        "size": stored.manifest.size,
        "digest": stored.manifest.digest,
        "details": details,
        "capabilities": list(capabilities),
    }


async def running(request: web.Request) -> web.Response:
    """The loaded model, and one that is loading; what became of experts that a card does not hold."""
    manager = request.app[SERVICES].manager
    rows = []
    for row in manager.loaded():
        is_split = 0 < row.size_vram_bytes < row.size_bytes
        stats = await manager.stats() if is_split else None
        experts = {} if stats is None or not stats.expert_slots else {"experts": _experts(stats)}
        rows.append(_running_row(row) | experts)
    return object_response({"models": rows})


def _experts(stats: Stats) -> dict[str, Any]:
    tokens = max(1, stats.prefill_tokens + stats.decode_tokens)
    return {
        "slots": stats.expert_slots,
        "reads": stats.expert_reads,
        "hits": stats.expert_hits,
        "hit_rate": round(stats.expert_hits / max(1, stats.expert_reads), 4),
        "fills": stats.expert_fills,
        "transient_fills": stats.expert_transient_fills,
        "on_cpu": stats.experts_on_cpu,
        "copied_bytes_per_token": stats.expert_copied_bytes // tokens,
        "cpu_bytes_per_token": stats.expert_cpu_bytes // tokens,
        "cpu_seconds": stats.expert_cpu_ns / 1e9,
        "split": stats.expert_split,
    }


def _running_row(row: LoadedModel) -> dict[str, Any]:
    info = row.spec.info
    now = datetime.now(UTC)
    when = now + _FOREVER if row.expires_at is None else datetime.fromtimestamp(row.expires_at, UTC)
    return {
        "name": info.name.display,
        "model": info.name.display,
        "size": row.size_bytes,
        "digest": info.digest,
        "details": info.details,
        "expires_at": jsontext.local_time(when),
        "size_vram": row.size_vram_bytes,
        "context_length": row.context_tokens,
    } | ({"memory": msgspec.structs.asdict(row.memory)} if row.memory and row.memory.place else {})


async def show(request: web.Request) -> web.Response:
    """Everything about one model."""
    fields = await read_fields(request)
    text = name_of(fields)
    if not text:
        raise InvalidRequest("model is required")
    services = request.app[SERVICES]
    info = await services.catalog.info(text, f"model '{parse_model_name(text).display}' not found")

    def read() -> bytes:
        body = describe(
            info,
            services.store.modified(info.name),
            fields.flag("verbose"),
            fields.text("system"),
            fields.mapping("options"),
        )
        if request.headers.get("User-Agent", "").startswith("GitHubCopilotChat/"):
            body["model_info"]["general.basename"] = text
        return jsontext.encode_pieces(body)

    return json_response(await asyncio.to_thread(read))


def name_of(fields: Fields) -> str:
    """Return the model that a body names, in either of its two fields."""
    return fields.text("model") or fields.text("name")


async def copy(request: web.Request) -> web.Response:
    """Give a model a second name."""
    fields = await read_fields(request)
    names = []
    for field in ("source", "destination"):
        try:
            names.append(parse_model_name(fields.text(field)))
        except InvalidName as exc:
            raise InvalidRequest(f'{field} "{fields.text(field)}" is invalid', exc.hint) from exc
    try:
        await asyncio.to_thread(request.app[SERVICES].store.copy, *names)
    except ModelNotFound as exc:
        raise ModelNotFound(f'model "{fields.text("source")}" not found', exc.hint) from exc
    return web.Response()


async def delete(request: web.Request) -> web.Response:
    """Remove a model and the blobs that only it used; if its weights are loaded they go when idle."""
    text = name_of(await read_fields(request))
    if not text:
        raise InvalidRequest("model is required")
    try:
        name = parse_model_name(text)
    except InvalidName as exc:
        raise InvalidRequest(f'name "{text}" is invalid', exc.hint) from exc
    services = request.app[SERVICES]
    try:
        removed = await asyncio.to_thread(services.store.delete, name)
    except ModelNotFound as exc:
        raise ModelNotFound(f"model '{text}' not found", "ftd list names the models that are here") from exc
    for digest in removed:
        services.manager.expire(digest)
    return web.Response()


async def openai_models(request: web.Request) -> web.Response:
    """All stored models in OpenAI's form, or in Anthropic's for its client."""
    stored = await asyncio.to_thread(request.app[SERVICES].store.list)
    if is_anthropic(request):
        return plain_object_response(_anthropic_list(stored), newline=True)
    rows = [_openai_row(model.name.display, model) for model in stored]
    return plain_object_response({"object": "list", "data": rows}, newline=True)


async def openai_model(request: web.Request) -> web.Response:
    """One stored model in OpenAI's form; the id is the one asked for."""
    text = request.match_info["id"]
    found, _ = await request.app[SERVICES].catalog.find(text)
    for model in await asyncio.to_thread(request.app[SERVICES].store.list):
        if model.name == found:
            row = _anthropic_row(text, model) if is_anthropic(request) else _openai_row(text, model)
            return plain_object_response(row, newline=True)
    raise ModelNotFound(f"model '{text}' not found")


def _openai_row(model_id: str, model: StoredModel) -> dict[str, Any]:
    return {
        "id": model_id,
        "object": "model",
        "created": int(model.modified.timestamp()),
        "owned_by": model.name.namespace,
    }


def _anthropic_list(stored: Sequence[StoredModel]) -> dict[str, Any]:
    rows = [_anthropic_row(model.name.display, model) for model in stored]
    first, last = (rows[0]["id"], rows[-1]["id"]) if rows else (None, None)
    return {"data": rows, "has_more": False, "first_id": first, "last_id": last}


def _anthropic_row(model_id: str, model: StoredModel) -> dict[str, Any]:
    created = model.modified.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": "model", "id": model_id, "display_name": model_id, "created_at": created}
