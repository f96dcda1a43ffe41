"""A step that fits is taken; each way in which one does not is refused with its values."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ftd.kernels.step import Limits, Step, check_step

LIMITS = Limits(max_tokens=8, max_sequences=3, max_logits=2, page_size=4, max_pages_per_sequence=3)
NUM_IDS, NUM_PAGES = 100, 6


def ints(*values: Any) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(values, np.int32)


def step(**fields: Any) -> Step:
    """A prompt of four tokens behind five cached ones, and one token of decode."""
    whole = Step(
        ids=ints(7, 8, 9, 99, 0),
        positions=ints(5, 6, 7, 8, 2),
        kv_index=ints(5, 6, 7, 8, 22),
        q_start=ints(0, 4, 5),
        kv_len=ints(9, 3),
        page_table=ints([0, 1, 2], [5, -1, -1]),
        logit_rows=ints(3, 4),
    )
    return whole._replace(**fields)


def check(made: Step, num_states: int = 0) -> None:
    check_step(made, LIMITS, NUM_IDS, NUM_PAGES, num_states)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"logit_rows": ints()},
        {"logit_rows": ints(4, 4)},
        {"page_table": ints([0, 1, 2], [5, 77, -9])},  # beyond its length nobody looks
        {"q_start": ints(0, 0, 5), "kv_len": ints(0, 9), "page_table": ints([-1, -1, -1], [0, 1, 2])},
        {"state_index": ints(0)},  # no op reads it
    ],
)
def test_steps_that_fit(fields: dict[str, Any]) -> None:
    check(step(**fields))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"ids": np.arange(5)}, "ids must be int32 [T], got int64 [5]"),
        ({"ids": ints([1, 2])}, "ids must be int32 [T], got int32 [1, 2]"),
        ({"positions": ints(1, 2)}, "positions must be int32 [5], got int32 [2]"),
        ({"kv_index": ints()}, "kv_index must be int32 [5], got int32 [0]"),
        ({"q_start": ints(0, 5)}, "q_start must be int32 [3], got int32 [2]"),
        ({"page_table": ints(0, 1)}, "page_table must be int32 [2, max_pages], got int32 [2]"),
        ({"page_table": ints([0], [1], [2])}, "page_table must be int32 [2, max_pages], got int32 [3, 1]"),
        ({"logit_rows": ints(0, 1, 2)}, "logits of a step must lie in 0 to 2, got 3"),
        ({"page_table": np.zeros((2, 4), np.int32)}, "columns of page_table must lie in 1 to 3, got 4"),
        ({"page_table": np.zeros((2, 0), np.int32)}, "columns of page_table must lie in 1 to 3, got 0"),
        ({"q_start": ints(1, 4, 5)}, "q_start must rise from 0 to 5, got [1, 4, 5]"),
        ({"q_start": ints(0, 4, 6)}, "q_start must rise from 0 to 5, got [0, 4, 6]"),
        ({"q_start": ints(0, 7, 5)}, "q_start must rise from 0 to 5, got [0, 7, 5]"),
        ({"ids": ints(7, 8, 9, 100, 0)}, "ids must lie in 0 to 99, got 100"),
        ({"ids": ints(7, -1, 9, 9, 0)}, "ids must lie in 0 to 99, got -1"),
        ({"logit_rows": ints(5)}, "logit_rows must lie in 0 to 4, got 5"),
        ({"kv_index": ints(5, 6, 7, 8, 24)}, "kv_index must lie in 0 to 23, got 24"),
        ({"kv_len": ints(13, 3)}, "kv_len must lie in 0 to 12, got 13"),
        ({"kv_len": ints(9, -1)}, "kv_len must lie in 0 to 12, got -1"),
        ({"page_table": ints([0, 1, 6], [5, -1, -1])}, "page_table must lie in 0 to 5, got 6"),
        ({"page_table": ints([0, 1, -1], [5, -1, -1])}, "page_table must lie in 0 to 5, got -1"),
        ({"positions": ints(5, 6, 7, 9, 2)}, "position of token 3 must be below 9, got 9"),
        ({"positions": ints(5, -1, 7, 8, 2)}, "position of token 1 must be below 9, got -1"),
        ({"positions": ints(5, 6, 7, 8, 3)}, "position of token 4 must be below 3, got 3"),
    ],
)
def test_steps_that_do_not(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError) as caught:
        check(step(**fields))
    assert str(caught.value) == text


def empty(tokens: int, sequences: int) -> Step:
    """A step of so many tokens, all of the first sequence."""
    return Step(
        ids=np.zeros(tokens, np.int32),
        positions=np.zeros(tokens, np.int32),
        kv_index=np.zeros(tokens, np.int32),
        q_start=np.array([0] + [tokens] * sequences, np.int32),
        kv_len=np.ones(sequences, np.int32),
        page_table=np.zeros((sequences, 1), np.int32),
        logit_rows=ints(),
    )


@pytest.mark.parametrize(
    ("tokens", "sequences", "text"),
    [
        (9, 1, "tokens of a step must lie in 1 to 8, got 9"),
        (0, 1, "tokens of a step must lie in 1 to 8, got 0"),
        (1, 4, "sequences of a step must lie in 1 to 3, got 4"),
    ],
)
def test_steps_of_the_wrong_size(tokens: int, sequences: int, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        check(empty(tokens, sequences))


@pytest.mark.parametrize(
    ("slots", "text"),
    [
        (None, "state_index must name a slot for each sequence, got None"),
        (ints(1), "state_index must be int32 [2], got int32 [1]"),
        (ints(0, 4), "state_index must lie in 0 to 3, got 4"),
        (ints(-1, 2), "state_index must lie in 0 to 3, got -1"),
        (ints(2, 2), "state_index must name each slot once, got [2, 2]"),
    ],
)
def test_slots_of_states(slots: Any, text: str) -> None:
    check(step(state_index=ints(3, 0)), num_states=4)
    with pytest.raises(ValueError) as caught:
        check(step(state_index=slots), num_states=4)
    assert str(caught.value) == text


@pytest.mark.parametrize("name", Limits.__slots__)
def test_limits_are_at_least_one(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        replace(LIMITS, **{name: 0})
