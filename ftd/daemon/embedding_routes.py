"""Routes that answer with vectors: ``/api/embed``, ``/api/embeddings``, ``/v1/embeddings``."""

import asyncio

from aiohttp import web

from ftd.api import embedding
from ftd.daemon.embedding import Embeddings
from ftd.daemon.responses import object_response, plain_object_response, read_body
from ftd.daemon.services import SERVICES


async def embed(request: web.Request) -> web.Response:
    """Embed one text or several."""
    wanted = embedding.parse_embed(await read_body(request))
    result = await _embeddings(request).run(wanted)
    return object_response(await asyncio.to_thread(embedding.embed_body, wanted, result))


async def embeddings(request: web.Request) -> web.Response:
    """Embed one text, in the older form."""
    wanted = embedding.parse_embeddings(await read_body(request))
    return object_response(embedding.embeddings_body(await _embeddings(request).run_legacy(wanted)))


async def openai_embeddings(request: web.Request) -> web.Response:
    """Embed one text or several in OpenAI's form."""
    fields = await read_body(request, "EOF")
    wanted = embedding.parse_openai(fields)
    result = await _embeddings(request).run(wanted)
    as_base64 = embedding.wants_base64(fields)
    body = await asyncio.to_thread(embedding.openai_body, wanted, result, as_base64)
    return plain_object_response(body, newline=True)


def _embeddings(request: web.Request) -> Embeddings:
    services = request.app[SERVICES]
    return Embeddings(services.catalog, services.manager)
