"""Texts to vectors: tokenised and cut here, computed by the engine, normalised here."""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ftd.api.embedding import EmbedRequest, EmbedResult
from ftd.chat import options as chat_options
from ftd.chat.beside import beside
from ftd.chat.tokenizer import Tokenizer
from ftd.daemon import modelinfo
from ftd.daemon.catalog import Catalog, Model
from ftd.daemon.load_spec import LoadSpec
from ftd.daemon.loaded import Lease
from ftd.daemon.manager import ModelManager
from ftd.engine.messages import Embed, Embedded
from ftd.errors import InvalidRequest, PromptTooLong, Unsupported

MISSING = 'model "{}" not found, try pulling it first'
_POOLINGS: dict[object, Literal["mean", "cls", "last"]] = {1: "mean", 2: "cls", 3: "last"}
# What takes the event loop a few milliseconds to send
BATCH_TOKENS = 1 << 20
_RANK = 4  # a model that scores pairs of texts


class Embeddings:
    """Runs embedding requests on whatever engine serves their model."""

    def __init__(self, catalog: Catalog, manager: ModelManager) -> None:
        self._catalog = catalog
        self._manager = manager

    async def run(self, request: EmbedRequest, normalise: bool = True) -> EmbedResult:
        """Return one vector for each text; with nothing to embed the model is only loaded."""
        started_ns = time.perf_counter_ns()
        model = await self._catalog.get(request.model, MISSING if request.model else "model '{}' not found")
        options = chat_options.merge(request.options, model.info.parameters)
        spec = LoadSpec(
            info=model.info, num_ctx=options.num_ctx, num_threads=options.num_thread, device=options.device
        )
        if not request.inputs:
            async with self._manager.lease(spec, request.keep_alive_ns):
                return EmbedResult(vectors=np.zeros((0, 0), np.float32))
        ids = await asyncio.to_thread(_encode, model.tokenizer, request.inputs)
        begun_ns = time.perf_counter_ns()
        async with self._leased(spec, request, max(map(len, ids))) as lease:
            load_ns = time.perf_counter_ns() - begun_ns
            sequences, cut = _cut(ids, lease.context_tokens, request.truncate, model.tokenizer.add_eos)
            answers = [await self._embed(lease, part, model) for part in _batches(sequences)]
        vectors = np.concatenate([np.frombuffer(a.data, "<f4").reshape(-1, a.width) for a in answers])
        return EmbedResult(
            vectors=await beside(vectors.size, _finished, vectors, request.dimensions, normalise),
            prompt_tokens=sum(answer.prompt_tokens for answer in answers),
            total_ns=time.perf_counter_ns() - started_ns,
            load_ns=load_ns,
            truncated_tokens=cut,
        )

    async def _embed(self, lease: Lease, sequences: list[list[int]], model: Model) -> Embedded:
        runner = lease.runner
        message = Embed(request_id=runner.next_request_id(), sequences=sequences, pooling=pooling_of(model))
        return await runner.embed(message)

    @asynccontextmanager
    async def _leased(
        self, spec: LoadSpec, request: EmbedRequest, longest_tokens: int
    ) -> AsyncGenerator[Lease, None]:
        """Hold an engine; one with a larger window if a text needs it and the request names none."""
        async with self._manager.lease(spec, request.keep_alive_ns) as lease:
            window = lease.context_tokens
            wider = self._manager.wider(spec, window) if longest_tokens > window else None
            if wider is None:
                yield lease
                return
        async with self._manager.lease(wider, request.keep_alive_ns) as lease:
            yield lease

    async def run_legacy(self, request: EmbedRequest) -> EmbedResult:
        """Return the vector of ``/api/embeddings``: normalised unless BERT's kin does not ask for it."""
        model = await self._catalog.get(request.model, MISSING)
        config = model.info.config
        family = modelinfo.family(config)
        asks = config.metadata.get(f"{family}.normalize_embeddings") is True
        return await self.run(request, asks or "bert" not in family)


def pooling_of(model: Model) -> Literal["mean", "cls", "last"]:
    """Return how the model's token states become one vector; the mean where it does not say."""
    kind = modelinfo.pooling_type(model.info.config)
    if kind == _RANK:
        raise Unsupported("a model that ranks pairs of texts embeds none", "use an embedding model")
    return _POOLINGS.get(kind, "mean")


def _encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    # An empty text still has a vector: that of the token a text would begin or end with.
    nothing = [min(tokenizer.eos_ids, default=0) if tokenizer.bos_id is None else tokenizer.bos_id]
    return [tokenizer.encode_document(text) or nothing for text in texts]


def _batches(sequences: list[list[int]]) -> Iterator[list[list[int]]]:
    """Yield sequences in groups whose messages to the engine have no more than BATCH_TOKENS, or one text."""
    batch: list[list[int]] = []
    room = BATCH_TOKENS
    for ids in sequences:
        if batch and len(ids) > room:
            yield batch
            batch, room = [], BATCH_TOKENS
        batch.append(ids)
        room -= len(ids)
    yield batch


def _cut(
    sequences: list[list[int]], window_tokens: int, truncate: bool, has_end: bool
) -> tuple[list[list[int]], int]:
    """Return sequences that fit the window, and how many ids were dropped; an end token stays."""
    cut_tokens, fitting = 0, []
    for idx, ids in enumerate(sequences):
        if len(ids) <= window_tokens:
            fitting.append(ids)
            continue
        if not truncate:
            raise PromptTooLong(
                f"the input length exceeds the context length: input {idx} has {len(ids)} tokens, "
                f"the context length is {window_tokens}",
                "shorten it, or say truncate",
            )
        cut_tokens += len(ids) - window_tokens
        fitting.append([*ids[: window_tokens - 1], ids[-1]] if has_end else ids[:window_tokens])
    return fitting, cut_tokens


def _finished(vectors: NDArray[np.float32], dimensions: int, normalise: bool) -> NDArray[np.float32]:
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if bad.size:
        raise InvalidRequest(f"embedding contains NaN or Inf values: input {', '.join(map(str, bad[:10]))}")
    is_cut = 0 < dimensions < vectors.shape[1]
    if is_cut:
        vectors = vectors[:, :dimensions]
    if not (normalise or is_cut):
        return vectors
    exact = vectors.astype(np.float64)
    lengths = np.linalg.norm(exact, axis=1, keepdims=True)
    return (exact / np.where(lengths == 0, 1, lengths)).astype(np.float32)
