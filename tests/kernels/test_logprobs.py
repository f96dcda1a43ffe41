"""logprobs against torch's log_softmax in float64, for every implementation."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ftd.errors import EngineError

Get = Callable[[str], Callable[..., Any]]


@pytest.mark.parametrize("size", [1, 63, 64, 65, 1000, 49152])
def test_equals_torch(get: Get, rng: np.random.Generator, size: int) -> None:
    logits = rng.standard_normal(size, np.float32) * 5
    expected = torch.log_softmax(torch.from_numpy(logits).double(), dim=0)
    best = torch.topk(expected, min(20, size))
    token = size // 2
    own, top = get("logprobs")(logits, token, 20)
    assert own == pytest.approx(expected[token].item(), abs=1e-6)
    assert [i for i, _ in top] == best.indices.tolist()
    np.testing.assert_allclose([value for _, value in top], best.values.numpy(), atol=1e-6)


def test_equals_come_in_order_of_id(get: Get) -> None:
    own, top = get("logprobs")(np.zeros(256, np.float32), 9, 4)
    assert [i for i, _ in top] == [0, 1, 2, 3]
    assert own == pytest.approx(-np.log(256), abs=1e-7)


def test_none_wanted_none_given(get: Get) -> None:
    assert get("logprobs")(np.array([0.0, -np.inf], np.float32), 1) == (-np.inf, [])


def test_more_wanted_than_there_are(get: Get) -> None:
    assert len(get("logprobs")(np.zeros(5, np.float32), 0, 1000)[1]) == 5


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_not_finite_are_an_error(get: Get, value: float) -> None:
    logits = np.zeros(70, np.float32)
    logits[66] = value
    with pytest.raises(EngineError, match=f"largest is {value}"):
        get("logprobs")(logits, 0, 1)


@pytest.mark.parametrize(
    ("token", "num_top", "message"), [(5, 0, "token must lie in 0 to 4"), (0, -1, "num_top")]
)
def test_refuses(get: Get, token: int, num_top: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        get("logprobs")(np.zeros(5, np.float32), token, num_top)
