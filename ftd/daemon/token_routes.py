"""Routes between text and token ids: ``/api/tokenize`` and ``/api/detokenize``. Nothing is loaded for them.

Bodies are those of llama.cpp's server, with a ``model``; Ollama has no such routes.
"""

import asyncio
from typing import Any

from aiohttp import web

from ftd.api import jsontext
from ftd.api.jsontext import Fields
from ftd.chat.beside import beside
from ftd.daemon.catalog import Model
from ftd.daemon.completion import MAX_PROMPT_CHARS
from ftd.daemon.responses import json_response, read_fields
from ftd.daemon.services import SERVICES
from ftd.errors import InvalidRequest

_TEXT_FIELDS = ("content", "prompt", "text")


async def tokenize(request: web.Request) -> web.Response:
    """Return the ids of a text.

    ``add_special`` (false) puts the BOS in front if the model wants one, ``parse_special`` (true) recognises
    control tokens in the text, ``with_pieces`` (false) adds the text of each id: a string, or the bytes of
    part of a character.
    """
    fields = await read_fields(request)
    text = next((fields.text(name) for name in _TEXT_FIELDS if fields.get(name) is not None), None)
    if text is None:
        raise InvalidRequest("content is required", "send the text to tokenize as content")
    if len(text) > MAX_PROMPT_CHARS:
        raise InvalidRequest(f"content has {len(text)} characters, the most are {MAX_PROMPT_CHARS}")
    model = await _model(request, fields)
    tokenizer = model.tokenizer

    def answer() -> bytes:
        ids = tokenizer.encode(text, special=fields.flag("parse_special", True))
        if fields.flag("add_special") and tokenizer.add_bos and tokenizer.bos_id is not None:
            ids = [tokenizer.bos_id, *ids]
        body: dict[str, Any] = {"model": fields.text("model"), "tokens": ids}
        if fields.flag("with_pieces"):
            body["pieces"] = [_piece(tokenizer.token_bytes(token)) for token in ids]
        return jsontext.encode_pieces(body)

    return json_response(await asyncio.to_thread(answer))


def _piece(data: bytes) -> str | list[int]:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return list(data)


async def detokenize(request: web.Request) -> web.Response:
    """Return the text of ids, control tokens too; U+FFFD where their bytes are no characters."""
    fields = await read_fields(request)
    ids = fields.items("tokens")
    model = await _model(request, fields)

    def answer() -> bytes:
        size = model.tokenizer.vocab_size
        for token in ids:
            if type(token) is not int or not 0 <= token < size:
                raise InvalidRequest(f"token id must be between 0 and {size - 1}: {token!r:.40}")
        return jsontext.encode({"model": fields.text("model"), "content": model.tokenizer.decode(ids)})

    return json_response(await beside(4 * len(ids), answer))


async def _model(request: web.Request, fields: Fields) -> Model:
    name = fields.text("model")
    if not name:
        raise InvalidRequest("model is required")
    return await request.app[SERVICES].catalog.get(name)
