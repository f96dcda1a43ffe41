"""Routes that bring models in and out: blobs, create, pull, push."""

import asyncio
import ipaddress
from contextlib import aclosing

from aiohttp import web

from ftd.api.jsontext import Fields
from ftd.daemon import create as creation
from ftd.daemon.catalog import parse_model_name
from ftd.daemon.create_request import CreateRequest, check_request
from ftd.daemon.model_routes import name_of
from ftd.daemon.responses import read_body, read_fields, status_response
from ftd.daemon.services import SERVICES, Services
from ftd.daemon.transfers import Statuses
from ftd.errors import InvalidRequest
from ftd.names import ModelName, parse_digest

_CHUNK_BYTES = 1 << 20


def _digest(request: web.Request) -> str:
    return parse_digest(request.match_info["digest"].replace("sha256-", "sha256:", 1))


async def has_blob(request: web.Request) -> web.Response:
    """Say by the status whether a blob is there."""
    found = await asyncio.to_thread(request.app[SERVICES].store.blobs.has, _digest(request))
    return web.Response(status=200 if found else 404)


async def receive_blob(request: web.Request) -> web.Response:
    """Store the bytes of the body as a blob, if they hash to its digest."""
    digest, blobs = _digest(request), request.app[SERVICES].store.blobs
    if await asyncio.to_thread(blobs.has, digest):
        await asyncio.to_thread(blobs.touch, digest)
        return web.Response(status=200)
    writer = await asyncio.to_thread(blobs.new)
    try:
        while chunk := await request.content.read(_CHUNK_BYTES):
            await asyncio.to_thread(writer.write, chunk)
        await asyncio.to_thread(writer.commit, digest)
    finally:
        writer.abort()
    return web.Response(status=201)


async def create(request: web.Request) -> web.StreamResponse:
    """Make a model of uploaded files or of another model."""
    services = request.app[SERVICES]

    def parse(fields: Fields) -> tuple[CreateRequest, bool]:
        wanted = check_request({key.lower(): value for key, value in fields.values.items()})
        return wanted, fields.flag("stream", True)

    wanted, is_stream = await read_body(request, parse)

    def fetch(name: ModelName) -> Statuses:
        return _pulled(services, name, False, _is_loopback(request))

    making = creation.create(services.store, wanted, services.catalog.renderer, fetch)
    statuses = services.transfers.watched(making)
    async with aclosing(statuses):
        return await status_response(request, statuses, is_stream)


async def pull(request: web.Request) -> web.StreamResponse:
    """Fetch a model from a registry; weights that came as GGUF are converted."""
    fields, services = await read_fields(request), request.app[SERVICES]
    name = parse_model_name(name_of(fields))
    pulling = _pulled(services, name, fields.flag("insecure"), _is_loopback(request))
    statuses = services.transfers.watched(pulling)
    async with aclosing(statuses):
        return await status_response(request, statuses, fields.flag("stream", True))


async def _pulled(services: Services, name: ModelName, insecure: bool, allow_loopback: bool) -> Statuses:
    """Yield the statuses of a pull and of the conversion after it; success comes once, at the end."""
    success = {"status": "success"}
    async with aclosing(services.registry.pull(name, insecure, allow_loopback)) as fetching:
        async for status in fetching:
            if status != success:
                yield status
    async with aclosing(creation.convert(services.store, name, services.catalog.renderer)) as converting:
        async for status in converting:
            if status != success:
                yield status
    yield success


async def push(request: web.Request) -> web.StreamResponse:
    """Send a model to the registry in its name."""
    fields = await read_fields(request)
    text = name_of(fields)
    if not text:
        raise InvalidRequest("model is required")
    services = request.app[SERVICES]
    pushing = services.registry.push(parse_model_name(text), fields.flag("insecure"), _is_loopback(request))
    statuses = services.transfers.watched(pushing)
    async with aclosing(statuses):
        return await status_response(request, statuses, fields.flag("stream", True))


def _is_loopback(request: web.Request) -> bool:
    """Say whether the caller is on this machine."""
    try:
        return ipaddress.ip_address((request.remote or "").partition("%")[0]).is_loopback
    except ValueError:
        return False
