"""Routes that answer with vectors: ``/api/embed``, ``/api/embeddings``, ``/v1/embeddings``."""

from collections.abc import Callable
from typing import Any

from aiohttp import web

from ftd.api import embedding, jsontext
from ftd.api.embedding import EmbedRequest, EmbedResult
from ftd.api.jsontext import Fields
from ftd.chat.beside import beside
from ftd.daemon.embedding import Embeddings
from ftd.daemon.responses import json_response, object_response, plain_json_response, read_body
from ftd.daemon.services import SERVICES


async def embed(request: web.Request) -> web.Response:
    """Embed one text or several."""
    wanted = await read_body(request, embedding.parse_embed)
    result = await _embeddings(request).run(wanted)
    return json_response(await _encoded(result, lambda: embedding.embed_body(wanted, result)))


async def embeddings(request: web.Request) -> web.Response:
    """Embed one text, in the older form."""
    wanted = await read_body(request, embedding.parse_embeddings)
    return object_response(embedding.embeddings_body(await _embeddings(request).run_legacy(wanted)))


async def openai_embeddings(request: web.Request) -> web.Response:
    """Embed one text or several in OpenAI's form."""

    def parse(fields: Fields) -> tuple[EmbedRequest, bool]:
        return embedding.parse_openai(fields), embedding.wants_base64(fields)

    wanted, as_base64 = await read_body(request, parse, "EOF")
    result = await _embeddings(request).run(wanted)
    body = await _encoded(result, lambda: embedding.openai_body(wanted, result, as_base64))
    return plain_json_response(body + b"\n")


async def _encoded(result: EmbedResult, body: Callable[[], dict[str, Any]]) -> bytes:
    # A number takes a microsecond, as long as many characters of text
    return await beside(20 * result.vectors.size, lambda: jsontext.encode_pieces(body()))


def _embeddings(request: web.Request) -> Embeddings:
    services = request.app[SERVICES]
    return Embeddings(services.catalog, services.manager)
