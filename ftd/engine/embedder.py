"""Embedding requests: several sequences run without output, the hidden states of each pooled into one vector.

A sequence's hidden states come in prefill chunks; they are added up as they come, so no more than a vector is
kept. The vectors go up as computed: whether to normalise them is the caller's business.
"""

from collections.abc import Callable
from typing import Literal

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from ftd.engine.batch import Batch
from ftd.engine.messages import Embed, Embedded, Finished, Up
from ftd.engine.model import Model
from ftd.engine.sequence import Sequence
from ftd.errors import InvalidRequest

Vector = NDArray[np.float64]


class Request(msgspec.Struct, eq=False):
    """One Embed in progress: its sequences, and the pooled vector of each, by sequence id."""

    request_id: int
    pooling: Literal["mean", "last", "cls"]
    sequences: list[Sequence]
    vectors: dict[int, Vector] = {}
    num_ended: int = 0
    is_aborted: bool = False


class Embedder:
    """Keeps the embedding requests in progress. Its sequences have negative ids, unlike requests."""

    def __init__(self, send: Callable[[Up], None]) -> None:
        self._send = send
        self._requests: dict[int, Request] = {}
        self._by_sequence_id: dict[int, Request] = {}
        self._last_id = 0

    def begin(self, message: Embed) -> list[Sequence]:
        """Return the sequences to schedule for ``message``. Raises InvalidRequest if there are none."""
        if not message.sequences:
            raise InvalidRequest("the embedding request has no sequences")
        sequences = []
        for ids in message.sequences:
            self._last_id -= 1
            sequences.append(Sequence.from_prompt(self._last_id, ids, is_embedding=True))
        request = Request(message.request_id, message.pooling, sequences)
        self._requests[message.request_id] = request
        self._by_sequence_id.update({sequence.request_id: request for sequence in sequences})
        return sequences

    def sequence_ids(self, request_id: int) -> list[int]:
        """Return the ids of a request's sequences; none if it is no embedding request in progress."""
        request = self._requests.get(request_id)
        return [sequence.request_id for sequence in request.sequences] if request else []

    def forget(self, request_id: int) -> None:
        """Drop a request."""
        for sequence in self._requests.pop(request_id).sequences:
            self._by_sequence_id.pop(sequence.request_id, None)

    def collect(self, batch: Batch, model: Model) -> None:
        """Pool the hidden states of this step's embedding sequences."""
        row = 0
        for sequence, start, count, _ in batch.entries:
            if sequence.is_embedding:
                request = self._by_sequence_id[sequence.request_id]
                self._pool(request, sequence, start, model.hidden[row : row + count])
            row += count

    def finish(self, sequence: Sequence, finished: Finished) -> int | None:
        """Note that a sequence ended; after the last one answer and return the request's id."""
        request = self._by_sequence_id[sequence.request_id]
        request.num_ended += 1
        request.is_aborted |= finished.reason == "abort"
        if request.num_ended < len(request.sequences):
            return None
        self.forget(request.request_id)
        num_tokens = sum(each.prompt_len for each in request.sequences)
        if request.is_aborted:
            self._send(replace(finished, request_id=request.request_id, prompt_tokens=num_tokens))
            return request.request_id
        vectors = [request.vectors[each.request_id] for each in request.sequences]
        self._send(
            Embedded(
                request_id=request.request_id,
                width=len(vectors[0]),
                data=b"".join(vector.astype("<f4").tobytes() for vector in vectors),
                prompt_tokens=num_tokens,
            )
        )
        return request.request_id

    @staticmethod
    def _pool(request: Request, sequence: Sequence, start: int, hidden: NDArray[np.float32]) -> None:
        """Add ``hidden`` [count, D] of the tokens from ``start`` on; from token 0 it begins anew."""
        key = sequence.request_id
        match request.pooling:
            case "mean":
                part = hidden.sum(axis=0, dtype=np.float64) / sequence.prompt_len
                request.vectors[key] = part if start == 0 else request.vectors[key] + part
            case "last":
                request.vectors[key] = hidden[-1].astype(np.float64)
            case "cls":
                if start == 0:
                    request.vectors[key] = hidden[0].astype(np.float64)
