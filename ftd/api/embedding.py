"""Embeddings in three forms: ``/api/embed``, the older ``/api/embeddings`` and ``/v1/embeddings``."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ftd.api.jsontext import Fields, kind_of
from ftd.api.ollama import nonzero
from ftd.api.request import parse_keep_alive
from ftd.errors import InvalidRequest

MAX_INPUTS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRequest:
    """Texts to embed. dimensions: 0 for all. truncate False refuses a text longer than the window."""

    model: str
    inputs: Sequence[str]
    truncate: bool = True
    dimensions: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    keep_alive_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedResult:
    """One vector for each text, in order. vectors [N, D] f32"""

    vectors: NDArray[np.float32]
    prompt_tokens: int = 0
    total_ns: int = 0
    load_ns: int = 0
    truncated_tokens: int = 0


def parse_embed(fields: Fields) -> EmbedRequest:
    """Return the request of an ``/api/embed`` body; nothing to embed is no error, it loads the model."""
    value = fields.get("input")
    inputs = [] if value in (None, "", []) else _inputs(value)
    return _request(fields, inputs, fields.flag("truncate", True))


def parse_embeddings(fields: Fields) -> EmbedRequest:
    """Return the request of an ``/api/embeddings`` body."""
    if not fields.text("model"):
        raise InvalidRequest("model is required")
    prompt = fields.text("prompt")
    return _request(fields, [prompt] if prompt else [], True)


def parse_openai(fields: Fields) -> EmbedRequest:
    """Return the request of a ``/v1/embeddings`` body."""
    if not fields.text("model"):
        raise InvalidRequest("model is required")
    value = fields.get("input")
    if value is None or value == []:
        raise InvalidRequest("invalid input")
    wants_base64(fields)
    return _request(fields, _inputs(value), fields.flag("truncate", True))


def wants_base64(fields: Fields) -> bool:
    """Say whether vectors shall be base64 of little-endian f32; raise InvalidRequest on other encodings."""
    encoding = fields.text("encoding_format") or "float"
    if encoding.lower() not in ("float", "base64"):
        raise InvalidRequest(
            f"Invalid value for 'encoding_format' = {encoding:.50}. Supported values: ['float', 'base64']."
        )
    return encoding.lower() == "base64"


def _inputs(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise InvalidRequest("invalid input type", "send a text or texts")
    for idx, item in enumerate(value):
        if not isinstance(item, str):
            # LangChain's OpenAIEmbeddings sends ids of OpenAI's tokenizer, which mean nothing to other models
            is_ids = isinstance(item, int | list)
            hint = "send texts, not token ids (LangChain: check_embedding_ctx_length=False)"
            raise InvalidRequest(
                f"invalid input type: {kind_of(item)} at input[{idx}]",
                hint if is_ids else "send a text or texts",
            )
    if len(value) > MAX_INPUTS:
        raise InvalidRequest(f"at most {MAX_INPUTS} inputs are embedded at once: {len(value)}")
    return value


def _request(fields: Fields, inputs: list[str], truncate: bool) -> EmbedRequest:
    return EmbedRequest(
        model=fields.text("model"),
        inputs=inputs,
        truncate=truncate,
        dimensions=fields.integer("dimensions") or 0,
        options=fields.mapping("options"),
        keep_alive_ns=parse_keep_alive(fields),
    )


def numbers(vector: NDArray[np.float32]) -> list[float]:
    """Return a vector as numbers that JSON prints as short as single precision allows."""
    return [float(str(value)) for value in vector]


def embed_body(request: EmbedRequest, result: EmbedResult) -> dict[str, Any]:
    """Return the answer of ``/api/embed``."""
    return {
        "model": request.model,
        "embeddings": [numbers(vector) for vector in result.vectors],
        **nonzero(
            total_duration=result.total_ns,
            load_duration=result.load_ns,
            prompt_eval_count=result.prompt_tokens,
            truncated_tokens=result.truncated_tokens,
        ),
    }


def embeddings_body(result: EmbedResult) -> dict[str, Any]:
    """Return the answer of ``/api/embeddings``."""
    return {"embedding": numbers(result.vectors[0]) if len(result.vectors) else []}


def openai_body(request: EmbedRequest, result: EmbedResult, as_base64: bool) -> dict[str, Any]:
    """Return the answer of ``/v1/embeddings``."""
    rows = []
    for idx, vector in enumerate(result.vectors):
        data = base64.b64encode(vector.astype("<f4").tobytes()).decode() if as_base64 else numbers(vector)
        rows.append({"object": "embedding", "embedding": data, "index": idx})
    count = result.prompt_tokens
    usage = {"prompt_tokens": count, "total_tokens": count}
    return {"object": "list", "data": rows, "model": request.model, "usage": usage}
