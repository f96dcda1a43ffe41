"""index_select's Triton kernels against the reference, on values whose sums are exact; ties and padding."""

from typing import Any

import numpy as np
import pytest
import torch

from ftd.kernels import index_select_ref
from ftd.kernels.index_select_triton import SEGMENT, index_select, index_select_into
from tests.kernels.test_index_select import CASES, arguments
from tests.kernels.test_latent_attention import Case

PLACES = ("pages", "page_table", "q_start", "kv_len", "positions")


def run(a: dict[str, Any], device: str, count: int, out: Any = None) -> Any:
    """Return the kernels' bits [T, W] u64, written to ``out`` if it is given."""
    t = {name: torch.from_numpy(value).to(device) for name, value in a.items() if name != "count"}
    places = tuple(t[name] for name in PLACES)
    if out is None:
        out = index_select(t["q"], t["weights"], *places, count)
    else:
        scores = torch.zeros((SEGMENT, t["page_table"].shape[1] * t["pages"].shape[1]), device=device)
        index_select_into(t["q"].flatten(1), t["weights"], *places, count, out=out, scores=scores)
    return out.cpu().numpy().view(np.uint64)


def whole_numbers(a: dict[str, Any], rng: np.random.Generator, spread: int) -> None:
    """Replace what scores are made of by small whole numbers: every sum is exact, and many are equal."""
    for name in ("q", "pages", "weights"):
        values = rng.integers(-spread, spread + 1, a[name].shape).astype(a[name].dtype)
        a[name] = np.where(np.isnan(a[name]), a[name], values).astype(a[name].dtype)


@pytest.mark.parametrize("spread", [1, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CASES)
def test_equals_the_reference(device: str, rng: np.random.Generator, name: str, spread: int) -> None:
    a = arguments(CASES[name], rng)
    whole_numbers(a, rng, spread)
    wanted = index_select_ref.index_select(**a)
    np.testing.assert_array_equal(run(a, device, a["count"]), wanted)


def test_many_keys_and_values_that_are_no_numbers(device: str, rng: np.random.Generator) -> None:
    case = Case(3, 16, 16, 64, ((1, 2100), (2, 1500)))
    a = arguments(case, rng)
    whole_numbers(a, rng, 2)
    a["pages"][a["page_table"][0, :2], 3, 0] = np.nan
    a["q"][0, 0] = 0.0  # minus zeros
    wanted = index_select_ref.index_select(**a | {"count": 600})
    np.testing.assert_array_equal(run(a, device, 600), wanted)


def test_padding_writes_nothing(device: str, rng: np.random.Generator) -> None:
    a = arguments(Case(4, 16, 8, 16, ((1, 40), (1, 30), (1, 1))), rng)
    whole_numbers(a, rng, 4)
    wanted = index_select_ref.index_select(**a)
    a["q_start"], a["kv_len"] = np.array([0, 1, 1, 1], np.int32), np.array([40, 0, 0], np.int32)
    out = torch.full((3, 1), 77, dtype=torch.int64, device=device)
    bits = run(a, device, a["count"], out=out)
    assert bits[0] == wanted[0] and (bits[1:] == 77).all()


def test_refuses_what_does_not_fit(device: str, rng: np.random.Generator) -> None:
    a = arguments(CASES["decode"], rng)
    with pytest.raises(ValueError, match="count must lie in 1"):
        run(a, device, 0)
    with pytest.raises(ValueError, match="out and scores must hold"):
        run(a, device, 5, out=torch.zeros((4, 1), dtype=torch.int64, device=device))
