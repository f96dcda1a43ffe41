"""Ids of a batch on the host: each sequence's own draw, failures that stay alone, what grammars force."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ftd.engine.batch import Batch, Entry
from ftd.engine.choosing import HostChooser, depends_on_history, params_of
from ftd.engine.messages import SamplingParams
from ftd.engine.sampler import Sampler
from ftd.engine.sequence import Sequence
from ftd.errors import EngineError, InvalidOption

VOCAB = 12
GREEDY = SamplingParams(temperature=0.0)


class Bound:
    """A grammar that allows some ids; ``forces`` follow the next one."""

    def __init__(self, ids: list[int], forces: tuple[int, ...] = (), fails: str = "") -> None:
        self.ids, self.forces, self.fails = ids, forces, fails
        self.consumed: list[int] = []
        self.is_complete = False

    def allowed(self, vocab_size: int) -> Any:
        assert vocab_size == VOCAB
        if self.fails == "allowed":
            raise InvalidOption("format cannot be enforced: x")
        bits = np.zeros(vocab_size, np.bool_)
        bits[self.ids] = True
        return bits

    def consume(self, token: int) -> None:
        if self.fails == "consume":
            raise InvalidOption("format cannot be enforced: y")
        self.consumed.append(token)

    def consume_forced(self) -> list[int]:
        self.is_complete = bool(self.forces)
        return list(self.forces)


def sequence(number: int, params: SamplingParams = GREEDY, **fields: Any) -> Sequence:
    state = Sampler(VOCAB).begin(params, -1)
    return Sequence.from_prompt(number, [1, 2], sampler_state=state, **fields)


def choose(sequences: list[Sequence], logits: Any, skipped: Sequence | None = None) -> Any:
    """Choose for a batch; ``skipped`` is in the middle of its prompt."""
    entries = [Entry(each, 0, 2, True) for each in sequences]
    if skipped is not None:
        entries.insert(1, Entry(skipped, 0, 1, False))
    model: Any = SimpleNamespace(logits=np.asarray(logits, np.float32))
    return HostChooser(Sampler(VOCAB), VOCAB).choose(Batch(tuple(entries)), model)


def rows(*best: int) -> Any:
    """Logits in which these ids are the likeliest, and the ones before them next."""
    ids = np.arange(VOCAB)
    return np.stack([-np.abs(ids - each) - 0.1 * (ids > each) for each in best])


def test_each_row_is_its_sequences_own() -> None:
    made = choose([sequence(1), sequence(2), sequence(3)], rows(4, 0, 11), skipped=sequence(9))
    assert (made.ids, made.logprobs, made.failures) == ([4, 0, 11], {}, {})


def test_a_step_that_ends_no_prompt_looks_at_no_logits() -> None:
    model: Any = SimpleNamespace()  # has none
    made = HostChooser(Sampler(VOCAB), VOCAB).choose(Batch((Entry(sequence(1), 0, 1, False),)), model)
    assert made.ids == []


def test_a_draw_does_not_depend_on_who_else_is_there() -> None:
    hot = SamplingParams(temperature=2.0, top_k=0, top_p=1.0, seed=5)
    logits = np.random.default_rng(2).standard_normal((3, VOCAB))
    together = choose([sequence(n, hot) for n in range(3)], logits).ids
    alone = [choose([sequence(n, hot)], logits[n : n + 1]).ids[0] for n in range(3)]
    assert together == alone


def test_a_failure_ends_its_request_alone() -> None:
    logits = rows(4, 5, 6, 7)
    logits[1, 3] = np.nan
    bad = [
        sequence(3, constraint=Bound([1], fails="allowed")),
        sequence(4, constraint=Bound([1], fails="consume")),
    ]
    made = choose([sequence(1), sequence(2), *bad], logits)
    assert made.ids == [4, 0, 0, 0], "one id for each, whatever became of it"
    assert set(made.failures) == {2, 3, 4}
    assert isinstance(made.failures[2], EngineError)
    assert "cannot be enforced: x" in made.failures[3].message
    assert "cannot be enforced: y" in made.failures[4].message


def test_a_grammar_allows_and_moves_on() -> None:
    bound = Bound([2, 9])
    made = choose([sequence(1, constraint=bound), sequence(2)], rows(5, 5))
    assert made.ids == [2, 5] and bound.consumed == [2]


def test_what_can_only_follow_comes_with_the_id_unless_each_needs_logits() -> None:
    free, shown = (Bound([3], forces=(7, 8)) for _ in range(2))
    first, second = sequence(1, constraint=free), sequence(2, constraint=shown, num_logprobs=0)
    made = choose([first, second], rows(0, 0))
    assert made.ids == [3, 3]
    assert (list(first.forced_ids), first.is_complete) == ([7, 8], True)
    assert (list(second.forced_ids), second.is_complete) == ([], False)


def test_an_id_that_ends_the_text_is_no_part_of_the_grammar() -> None:
    bound = Bound([3, 11])
    made = choose([sequence(1, constraint=bound, stop_ids=frozenset((11,)))], rows(11))
    assert made.ids == [11] and bound.consumed == []


def test_logprobs_are_those_of_the_whole_distribution() -> None:
    logits = np.random.default_rng(3).standard_normal((2, VOCAB)).astype(np.float32)
    made = choose([sequence(1, num_logprobs=3), sequence(2)], logits)
    exact = logits[0].astype(np.float64)
    exact -= np.log(np.exp(exact).sum())
    best = np.argsort(-exact)[:3]
    found = made.logprobs[1]
    assert list(made.logprobs) == [1] and found.id == best[0]
    assert found.logprob == pytest.approx(exact[best[0]], abs=1e-6)
    assert [token for token, _ in found.top] == best.tolist()
    assert [value for _, value in found.top] == pytest.approx(exact[best].tolist(), abs=1e-6)


@pytest.mark.parametrize(
    ("params", "depends"),
    [
        (GREEDY, False),
        (SamplingParams(temperature=1.0, seed=1), False),
        (SamplingParams(repeat_penalty=1.1, repeat_last_n=64), True),
        (SamplingParams(repeat_penalty=1.1, repeat_last_n=0), False),
        (SamplingParams(presence_penalty=0.1, repeat_last_n=8), True),
    ],
)
def test_what_looks_back_cannot_be_launched_ahead(params: SamplingParams, depends: bool) -> None:
    one = sequence(1, params)
    assert params_of(one).temperature == params.temperature
    assert depends_on_history(one) is depends
    assert depends_on_history(sequence(2, params, constraint=Bound([1])))
