"""route_topk against a definition in torch, for every implementation; ties and hostile values by hand."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ftd.kernels import _route_topk_cy, route_topk_ref

Get = Callable[[str], Callable[..., Any]]


def expected(
    logits: NDArray[np.float32], num_chosen: int, scoring: str, renormalise: bool, scale: float, **groups: Any
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return ids and weights as DeepSeek-V3's, GLM-4's and Qwen3's definitions do, in float64."""
    wide = torch.from_numpy(logits).double()
    scores = wide.softmax(dim=1) if scoring == "softmax" else wide.sigmoid()
    ranks = scores
    if groups.get("bias") is not None:
        ranks = scores + torch.from_numpy(groups["bias"]).double()
    count = groups.get("num_groups", 1)
    if count > 1:
        grouped = ranks.view(len(logits), count, -1)
        best = grouped.topk(groups.get("group_top", 2), dim=2)[0].sum(dim=2)
        allowed = torch.zeros_like(best).scatter_(1, best.topk(groups["top_groups"], dim=1)[1], 1.0)
        ranks = grouped.masked_fill(allowed[:, :, None] == 0, -torch.inf).view(len(logits), -1)
    ids = ranks.topk(num_chosen, dim=1)[1]
    weights = scores.gather(1, ids)
    if renormalise:
        weights = weights / weights.sum(dim=1, keepdim=True)
    return ids.numpy(), (weights * scale).numpy()


CASES: list[dict[str, Any]] = [
    {"num_chosen": 2, "scoring": "softmax", "renormalise": True, "scale": 1.0},
    {"num_chosen": 8, "scoring": "softmax", "renormalise": False, "scale": 1.5},
    {"num_chosen": 5, "scoring": "sigmoid", "renormalise": True, "scale": 2.5},
    {"num_chosen": 1, "scoring": "sigmoid", "renormalise": False, "scale": 1.0},
    {
        "num_chosen": 6,
        "scoring": "sigmoid",
        "renormalise": True,
        "scale": 2.5,
        "num_groups": 8,
        "top_groups": 4,
    },
    {
        "num_chosen": 6,
        "scoring": "softmax",
        "renormalise": False,
        "scale": 16.0,
        "num_groups": 8,
        "top_groups": 3,
        "group_top": 1,
    },
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("tokens", [1, 37])
def test_equals_the_definition(
    get: Get,
    pools: tuple[Any, ...],
    rng: np.random.Generator,
    case: dict[str, Any],
    biased: bool,
    tokens: int,
) -> None:
    logits = rng.standard_normal((tokens, 64), np.float32) * np.float32(3)
    bias = rng.standard_normal(64, np.float32) * np.float32(0.3) if biased else None
    ids, weights = expected(logits, **case, bias=bias)
    for pool in pools:
        our_ids, our_weights = get("route_topk")(logits, **case, bias=bias, pool=pool)
        assert our_ids.dtype == np.int32 and our_weights.dtype == np.float32
        np.testing.assert_array_equal(our_ids, ids)
        np.testing.assert_allclose(our_weights, weights, rtol=3e-6)


def test_of_equals_the_lowest_id_wins(get: Get) -> None:
    logits = np.array([[1, 3, 3, 3, 0, 3, 1, 1]], np.float32)
    for scoring in ("softmax", "sigmoid"):
        ids, weights = get("route_topk")(logits, 5, scoring)
        assert ids.tolist() == [[1, 2, 3, 5, 0]]
        assert weights[0, 0] == weights[0, 3] > weights[0, 4]
    # Groups 0 and 2 count the same; the first of them is taken, and within it the lowest ids.
    logits = np.array([[1, 1, 0, 0, 1, 1]], np.float32)
    assert get("route_topk")(logits, 2, "sigmoid", num_groups=3, top_groups=1)[0].tolist() == [[0, 1]]


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize("groups", [(1, 1), (4, 2)])
def test_hostile_logits_give_distinct_experts_in_range(
    get: Get, scoring: str, groups: tuple[int, int]
) -> None:
    values = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 0, -0.0, 1e-45], np.float32)
    rng = np.random.default_rng(3)
    logits = np.concatenate([rng.choice(values, (50, 16)), np.full((1, 16), np.nan, np.float32)])
    ids, _ = get("route_topk")(logits, 6, scoring, num_groups=groups[0], top_groups=groups[1])
    assert ids.min() >= 0 and ids.max() < 16
    assert all(len(set(row)) == 6 for row in ids.tolist())


@settings(max_examples=examples(60))
@given(st.data())
def test_both_implementations_agree_bit_for_bit_on_ids(data: st.DataObject) -> None:
    groups = data.draw(st.integers(1, 6))
    size = data.draw(st.integers(2, 9))
    top_groups = data.draw(st.integers(1, groups))
    chosen = data.draw(st.integers(1, top_groups * size))
    # Few distinct values, so that ties are common.
    values = st.lists(st.integers(-4, 4), min_size=groups * size, max_size=groups * size)
    logits = np.array([data.draw(values)], np.float32)
    bias = data.draw(st.none() | values.map(lambda row: np.array(row, np.float32) / 8))
    scoring, renormalise = data.draw(st.sampled_from(["softmax", "sigmoid"])), data.draw(st.booleans())
    arguments = (logits, chosen, scoring, renormalise, 1.0, bias, groups, top_groups, min(2, size))
    ids, weights = route_topk_ref.route_topk(*arguments)
    fast_ids, fast_weights = _route_topk_cy.route_topk(*arguments)
    np.testing.assert_array_equal(fast_ids, ids)
    np.testing.assert_allclose(fast_weights, weights, rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_chosen": 9}, "num_chosen must lie in 1 to 8, got 9"),
        ({"num_chosen": 0}, "num_chosen"),
        ({"num_chosen": 2, "scoring": "tanh"}, "softmax sigmoid, got tanh"),
        ({"num_chosen": 2, "num_groups": 3}, "8 and 3"),
        ({"num_chosen": 3, "num_groups": 4, "top_groups": 1}, "1 to 2, got 3"),
        ({"num_chosen": 2, "num_groups": 4, "top_groups": 5}, "top_groups"),
        ({"num_chosen": 2, "num_groups": 8, "top_groups": 8}, "group_top"),
        ({"num_chosen": 2, "bias": np.zeros(7, np.float32)}, r"bias must be float32 \[8\]"),
    ],
)
def test_refuses_what_cannot_be(get: Get, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        get("route_topk")(np.zeros((2, 8), np.float32), **arguments)
    with pytest.raises(ValueError, match="logits must be float32"):
        get("route_topk")(np.zeros((2, 8), np.float64), 2)


def test_no_tokens(get: Get) -> None:
    ids, weights = get("route_topk")(np.zeros((0, 8), np.float32), 3)
    assert ids.shape == weights.shape == (0, 3)
