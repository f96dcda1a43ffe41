"""Which requests a card's sampler serves, and what its rows hold, counted by hand."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftd.kernels import sample_rows
from ftd.kernels.sample_rows import MAX_HISTORY, NUM_PARAMETERS


def params(**fields: Any) -> Any:
    """Parameters with every link of the chain switched off but for those given."""
    off = {"temperature": 1.0, "top_k": 40, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0}
    none = {"repeat_last_n": 64, "repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    return SimpleNamespace(**{**off, **none, **fields})


@pytest.mark.parametrize(
    ("fields", "num_logprobs", "is_served"),
    [
        ({}, -1, True),
        ({"top_k": 1}, -1, True),
        ({"top_k": 256}, -1, True),
        ({"top_k": 257}, -1, False),
        ({"top_k": 0}, -1, False),  # all tokens
        ({"top_k": -1}, -1, False),
        ({"typical_p": 0.9}, -1, False),
        ({"temperature": 0.0, "top_k": 0, "typical_p": 0.5}, -1, True),  # the largest, whatever else is said
        ({"temperature": -1.0, "top_k": 100_000}, -1, True),
        ({}, 0, True),
        ({}, 256, True),
        ({}, 257, False),
        # what logprobs show is before penalties, and candidates are those behind them
        ({"repeat_penalty": 1.1}, -1, True),
        ({"repeat_penalty": 1.1}, 0, True),
        ({"repeat_penalty": 1.1}, 1, False),
        ({"repeat_penalty": 1.1, "repeat_last_n": 0}, 20, True),
        ({"repeat_penalty": 1.1, "repeat_last_n": 256}, -1, True),
        ({"repeat_penalty": 1.1, "repeat_last_n": 257}, -1, False),
        ({"presence_penalty": 0.5, "repeat_last_n": -1}, -1, False),  # the whole history
        ({"repeat_last_n": -1}, -1, True),  # of which nothing is wanted
    ],
)
def test_which_requests_it_serves(fields: dict[str, Any], num_logprobs: int, is_served: bool) -> None:
    assert sample_rows.supports(params(**fields), num_logprobs) is is_served


@pytest.mark.parametrize(
    ("fields", "num_logprobs", "count"),
    [
        ({"temperature": 0.0}, -1, 1),
        ({"temperature": 0.0, "top_k": 300}, 0, 1),
        ({"temperature": 0.0}, 5, 64),
        ({"top_k": 1}, -1, 1),
        ({"top_k": 2}, -1, 64),
        ({"top_k": 64}, 64, 64),
        ({"top_k": 64}, 65, 256),
        ({"top_k": 65}, -1, 256),
        ({"top_k": 256}, -1, 256),
    ],
)
def test_as_few_candidates_as_will_do(fields: dict[str, Any], num_logprobs: int, count: int) -> None:
    assert sample_rows.candidates_needed(params(**fields), num_logprobs) == count


@given(
    st.integers(-3, 300),
    st.sampled_from((-1, 0, 1, 5, 64, 65, 256)),
    st.booleans(),
    st.sampled_from((0.0, 0.7)),
)
def test_what_is_served_has_candidates_enough(
    top_k: int, num_logprobs: int, is_penalised: bool, temperature: float
) -> None:
    wanted = params(top_k=top_k, temperature=temperature, repeat_penalty=1.2 if is_penalised else 1.0)
    if sample_rows.supports(wanted, num_logprobs):
        count = sample_rows.candidates_needed(wanted, num_logprobs)
        assert count >= num_logprobs and (temperature <= 0 or count >= top_k)


PENALTIES = {"repeat_penalty": 1.25, "presence_penalty": 0.5, "frequency_penalty": -0.25}


@given(st.lists(st.integers(0, 9), max_size=300), st.integers(0, MAX_HISTORY))
def test_history_is_the_end_of_what_came_before(ids: list[int], last_n: int) -> None:
    """As ``Counter`` counts them; their order does not matter."""
    parameters, history = np.full(NUM_PARAMETERS, 7.0), np.full(MAX_HISTORY, 99, np.int32)
    wanted = params(repeat_last_n=last_n, top_p=0.9, min_p=0.1, **PENALTIES)
    sample_rows.fill_row(parameters, history, wanted, np.array(ids, np.int32), 0.375, 10)
    if last_n == 0:
        assert parameters.tolist() == [1.0, 40, 0.9, 0.1, 1.0, 0.0, 0.0, 0.375]
        assert (history == -1).all()
        return
    assert parameters.tolist() == [1.0, 40, 0.9, 0.1, 1.25, 0.5, -0.25, 0.375]
    assert Counter(history[history >= 0].tolist()) == Counter(ids[-last_n:])
    count = int((history >= 0).sum())
    assert (history[count:] == -1).all()


@pytest.mark.parametrize("token", [-1, 10])
def test_an_id_that_is_none_is_refused_only_where_it_is_looked_at(token: int) -> None:
    parameters, history = np.empty(NUM_PARAMETERS), np.empty(MAX_HISTORY, np.int32)
    ids = np.array([token, 3, 4], np.int32)
    sample_rows.fill_row(parameters, history, params(**PENALTIES, repeat_last_n=2), ids, 0.5, 10)
    with pytest.raises(ValueError, match=f"history must lie in 0 to 9, got {token}"):
        sample_rows.fill_row(parameters, history, params(**PENALTIES, repeat_last_n=3), ids, 0.5, 10)


def test_rows_do_not_remember_the_request_before_them() -> None:
    parameters, history = np.empty(NUM_PARAMETERS), np.empty(MAX_HISTORY, np.int32)
    ids = np.arange(9, dtype=np.int32)
    sample_rows.fill_row(parameters, history, params(**PENALTIES), ids, 0.5, 10)
    assert (history >= 0).sum() == 9
    sample_rows.fill_row(parameters, history, params(temperature=0.0, top_k=-1), ids, 0.0, 10)
    assert parameters.tolist() == [0.0, 1, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    assert (history == -1).all()
