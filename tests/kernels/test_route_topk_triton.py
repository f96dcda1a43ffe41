"""route_topk's Triton kernel against the reference: ids exactly, weights to a few roundings."""

from typing import Any

import numpy as np
import pytest
import torch

from ftd.kernels import route_topk_ref
from ftd.kernels.route_topk_triton import route_topk, route_topk_into

CASES: list[dict[str, Any]] = [
    {"num_chosen": 2},
    {"num_chosen": 8, "renormalise": False, "scale": 1.5},
    {"num_chosen": 5, "scoring": "sigmoid", "scale": 2.5},
    {"num_chosen": 1, "scoring": "sigmoid", "renormalise": False},
    {"num_chosen": 6, "scoring": "sigmoid", "scale": 2.5, "num_groups": 8, "top_groups": 4},
    {"num_chosen": 6, "renormalise": False, "num_groups": 8, "top_groups": 3, "group_top": 1},
    {"num_chosen": 7, "num_groups": 3, "top_groups": 2, "group_top": 3},
]


def both(logits: Any, device: str, **case: Any) -> tuple[Any, Any, Any, Any]:
    """Return ids and weights of the kernel and of the reference."""
    bias = case.pop("bias", None)
    ids, weights = route_topk(
        torch.from_numpy(logits).to(device),
        bias=None if bias is None else torch.from_numpy(bias).to(device),
        **case,
    )
    return (ids.cpu().numpy(), weights.cpu().numpy(), *route_topk_ref.route_topk(logits, bias=bias, **case))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("experts", [24, pytest.param(96, marks=pytest.mark.slow)])
def test_equals_the_reference(
    device: str, rng: np.random.Generator, case: dict[str, Any], biased: bool, experts: int
) -> None:
    logits = rng.standard_normal((3, experts), np.float32) * np.float32(3)
    bias = rng.standard_normal(experts, np.float32) * np.float32(0.3) if biased else None
    ids, weights, wanted_ids, wanted_weights = both(logits, device, bias=bias, **case)
    np.testing.assert_array_equal(ids, wanted_ids)
    np.testing.assert_allclose(weights, wanted_weights, rtol=1e-6)


@pytest.mark.parametrize("case", [CASES[0], CASES[2], CASES[4], CASES[6]])
def test_of_equals_the_lowest_wins(device: str, rng: np.random.Generator, case: dict[str, Any]) -> None:
    logits = rng.integers(-2, 3, (6, 24)).astype(np.float32)
    ids, weights, wanted_ids, wanted_weights = both(logits, device, **case)
    np.testing.assert_array_equal(ids, wanted_ids)
    np.testing.assert_allclose(weights, wanted_weights, rtol=1e-6)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, in the interpreter
@pytest.mark.parametrize("case", [CASES[0], CASES[2], CASES[4]])
def test_hostile_logits_give_the_same_experts(
    device: str, rng: np.random.Generator, case: dict[str, Any]
) -> None:
    values = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 0, -0.0, 1e-45], np.float32)
    logits = np.concatenate([rng.choice(values, (6, 16)), np.full((1, 16), np.nan, np.float32)])
    ids, _, wanted_ids, _ = both(logits, device, **case)
    np.testing.assert_array_equal(ids, wanted_ids)


def test_padding_rows_choose_nothing_and_rows_may_be_strided(device: str, rng: np.random.Generator) -> None:
    logits = rng.standard_normal((3, 40), np.float32)
    wide = torch.from_numpy(logits).to(device)
    ids = torch.full((3, 9), 77, dtype=torch.int32, device=device)
    weights = torch.full((3, 8), 77.0, device=device)
    kv_index = torch.tensor([5, -1, 0], dtype=torch.int32, device=device)
    route_topk_into(wide[:, 3:36], 4, kv_index=kv_index, ids=ids[:, 2:6], weights=weights[:, :4])
    wanted_ids, wanted_weights = route_topk_ref.route_topk(np.ascontiguousarray(logits[:, 3:36]), 4)
    np.testing.assert_array_equal(ids.cpu()[[0, 2], 2:6], wanted_ids[[0, 2]])
    np.testing.assert_allclose(weights.cpu()[[0, 2], :4], wanted_weights[[0, 2]], rtol=1e-6)
    assert ids.cpu()[1].tolist() == [77, 77, -1, -1, -1, -1, 77, 77, 77]
    assert weights.cpu()[1].tolist() == [0.0] * 4 + [77.0] * 4


def test_refuses_what_cannot_be(device: str) -> None:
    logits = torch.zeros((2, 48), device=device)
    with pytest.raises(ValueError, match="num_chosen must lie in 1 to 32, got 33"):
        route_topk(logits, 33)
    with pytest.raises(ValueError, match=r"ids must be int32 \[2, 2\]"):
        ids = torch.zeros((2, 3), dtype=torch.int32, device=device)
        route_topk_into(logits, 2, ids=ids, weights=logits[:, :2])
    with pytest.raises(ValueError, match="softmax sigmoid, got tanh"):
        route_topk(logits, 2, "tanh")
    assert route_topk(logits[:0], 3)[0].shape == (0, 3)
