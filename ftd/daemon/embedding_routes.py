"""Routes that answer with vectors: ``/api/embed``, ``/api/embeddings``, ``/v1/embeddings``."""

import asyncio

from aiohttp import web

from ftd.api import embedding
from ftd.daemon.responses import object_response, plain_object_response, read_body
from ftd.daemon.services import SERVICES


def add_routes(app: web.Application) -> None:
    """Register the routes of this module."""
    app.router.add_post("/api/embed", embed)
    app.router.add_post("/api/embeddings", embeddings)
    app.router.add_post("/v1/embeddings", openai_embeddings)


async def embed(request: web.Request) -> web.Response:
    """Embed one text or several."""
    wanted = embedding.parse_embed(await read_body(request))
    result = await request.app[SERVICES].embeddings.run(wanted)
    return object_response(await asyncio.to_thread(embedding.embed_body, wanted, result))


async def embeddings(request: web.Request) -> web.Response:
    """Embed one text, in the older form."""
    wanted = embedding.parse_embeddings(await read_body(request))
    return object_response(
        embedding.embeddings_body(await request.app[SERVICES].embeddings.run_legacy(wanted))
    )


async def openai_embeddings(request: web.Request) -> web.Response:
    """Embed one text or several in OpenAI's form."""
    fields = await read_body(request, "EOF")
    wanted = embedding.parse_openai(fields)
    result = await request.app[SERVICES].embeddings.run(wanted)
    as_base64 = embedding.wants_base64(fields)
    body = await asyncio.to_thread(embedding.openai_body, wanted, result, as_base64)
    return plain_object_response(body, newline=True)
