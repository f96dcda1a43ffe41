"""Pooled vectors against NumPy over all hidden states, whatever chunks they came in; ends of every kind."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ftd.engine.batch import Entry
from ftd.engine.embedder import Embedder
from ftd.engine.messages import Embed, Embedded, Finished
from ftd.engine.sequence import Sequence
from ftd.errors import InvalidRequest

WIDTH = 5
POOLINGS = ("mean", "last", "cls")


class Harness:
    """An embedder, what it sent, and the states of each of its sequences."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.embedder = Embedder(self.sent.append)
        self.states: dict[int, NDArray[np.float32]] = {}

    def begin(self, request_id: int, lengths: list[int], pooling: Any = "mean") -> list[Sequence]:
        message = Embed(request_id=request_id, sequences=[[1] * n for n in lengths], pooling=pooling)
        sequences = self.embedder.begin(message)
        rng = np.random.default_rng(request_id)
        for sequence, length in zip(sequences, lengths, strict=True):
            self.states[sequence.request_id] = rng.standard_normal((length, WIDTH), np.float32)
        return sequences

    def step(self, *parts: tuple[Sequence, int, int]) -> None:
        """Run tokens of sequences: each with its first token and how many."""
        hidden = [
            self.states[sequence.request_id][start : start + count]
            if sequence.is_embedding
            else np.full((count, WIDTH), np.nan, np.float32)
            for sequence, start, count in parts
        ]
        entries = [Entry(sequence, start, count, False) for sequence, start, count in parts]
        self.embedder.collect(
            SimpleNamespace(entries=entries),  # type: ignore[arg-type]
            SimpleNamespace(hidden=np.concatenate(hidden)),  # type: ignore[arg-type]
        )

    def end(self, sequence: Sequence, reason: Any = "stop") -> int | None:
        finished = Finished(
            request_id=sequence.request_id,
            reason=reason,
            prompt_tokens=sequence.prompt_len,
            cached_tokens=0,
            output_tokens=0,
            queue_ns=1,
            prefill_ns=2,
            decode_ns=3,
        )
        return self.embedder.finish(sequence, finished)

    def pooled(self, sequence: Sequence, pooling: str) -> NDArray[np.float64]:
        states = self.states[sequence.request_id].astype(np.float64)
        return {"mean": states.mean(axis=0), "last": states[-1], "cls": states[0]}[pooling]


@given(
    st.sampled_from(POOLINGS),
    st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_any_chunks_give_the_vector_of_the_whole(pooling: str, chunks: list[list[int]]) -> None:
    """chunks: of each sequence; those of all run beside each other, and beside a sequence that is none."""
    harness = Harness()
    sequences = harness.begin(7, [sum(each) for each in chunks], pooling)
    other = Sequence.from_prompt(1, [1, 2, 3])
    done = [0] * len(chunks)
    for turn in range(max(map(len, chunks))):
        parts = [(other, 0, 2)]
        for i, each in enumerate(chunks):
            if turn < len(each):
                parts.append((sequences[i], done[i], each[turn]))
                done[i] += each[turn]
        harness.step(*parts)
    *early, last = [harness.end(sequence) for sequence in reversed(sequences)]
    assert early == [None] * (len(chunks) - 1) and last == 7
    (embedded,) = harness.sent
    assert isinstance(embedded, Embedded)
    assert (embedded.request_id, embedded.width) == (7, WIDTH)
    assert embedded.prompt_tokens == sum(map(sum, chunks))
    found = np.frombuffer(embedded.data, "<f4").reshape(len(chunks), WIDTH)
    wanted = np.array([harness.pooled(sequence, pooling) for sequence in sequences])
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_sequence_that_was_preempted_begins_anew(pooling: str) -> None:
    harness = Harness()
    (sequence,) = harness.begin(1, [6], pooling)
    harness.step((sequence, 0, 4))
    harness.states[sequence.request_id] = harness.states[sequence.request_id] + 1  # a later, other run
    for start in (0, 3):
        harness.step((sequence, start, 3))
    assert harness.end(sequence) == 1
    found = np.frombuffer(harness.sent[0].data, "<f4")
    np.testing.assert_allclose(found, harness.pooled(sequence, pooling), rtol=1e-6)


def test_requests_beside_each_other_keep_their_vectors() -> None:
    harness = Harness()
    (first,), (second,) = harness.begin(1, [3], "mean"), harness.begin(2, [3], "last")
    assert first.request_id != second.request_id and first.request_id < 0 > second.request_id
    harness.step((second, 0, 3), (first, 0, 3))
    assert (harness.end(first), harness.end(second)) == (1, 2)
    for message, sequence, pooling in zip(harness.sent, (first, second), ("mean", "last"), strict=True):
        found = np.frombuffer(message.data, "<f4")
        np.testing.assert_allclose(found, harness.pooled(sequence, pooling), rtol=1e-6)


def test_a_request_whose_parts_were_aborted_is_answered_once_with_its_own_id() -> None:
    harness = Harness()
    first, second, third = harness.begin(9, [2, 3, 4])
    assert harness.embedder.sequence_ids(9) == [each.request_id for each in (first, second, third)]
    harness.step((first, 0, 2))
    assert harness.end(first) is None and harness.end(third, "abort") is None
    assert harness.sent == []
    assert harness.end(second, "abort") == 9
    (finished,) = harness.sent
    assert (finished.request_id, finished.reason, finished.prompt_tokens) == (9, "abort", 9)
    assert harness.embedder.sequence_ids(9) == []


def test_what_is_forgotten_leaves_nothing() -> None:
    harness = Harness()
    sequences = harness.begin(3, [2, 2])
    harness.embedder.forget(3)
    assert harness.embedder.sequence_ids(3) == [] and not harness.embedder._by_sequence_id
    again = harness.begin(3, [2])
    assert again[0].request_id not in {each.request_id for each in sequences}


def test_a_request_without_sequences_is_refused() -> None:
    harness = Harness()
    with pytest.raises(InvalidRequest, match="has no sequences"):
        harness.begin(1, [])
    assert harness.embedder.sequence_ids(1) == []
