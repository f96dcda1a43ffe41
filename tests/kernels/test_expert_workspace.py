"""Memory between the kernels of experts: parts that do not overlap, and steps that do not fit."""

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ftd.kernels.expert_workspace import DECODE_TOKENS, Workspace

SIZES = st.tuples(
    st.integers(1, 40), st.integers(1, 4), st.integers(4, 9), st.integers(1, 70), st.integers(1, 50)
)


def span(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes


def are_apart(*tensors: torch.Tensor) -> bool:
    spans = sorted(map(span, tensors))
    return all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


@given(SIZES, st.sampled_from(("fast", "f32")), st.data())
def test_every_step_up_to_the_largest_fits(
    sizes: tuple[int, ...], precision: str, data: st.DataObject
) -> None:
    tokens, chosen, experts, width, inner = sizes
    made = Workspace.make(tokens, chosen, experts, width, inner, precision, "cpu")
    is_exact = precision == "f32"
    few = data.draw(st.integers(1, tokens))
    pairs = few * chosen
    made.expect(pairs, experts, width, inner, is_exact)
    item = torch.float32 if is_exact else torch.bfloat16
    hidden = made.rows(made.inner, pairs, inner, item)
    parts = made.rows(made.parts, pairs, width, torch.float32 if few <= DECODE_TOKENS else item)
    assert hidden.shape == (pairs, inner) and parts.shape == (pairs, width)
    assert hidden.is_contiguous() and hidden.data_ptr() == made.inner.data_ptr()
    groups = made.groups(pairs, experts)
    fields = [groups.order, groups.rank, groups.starts, groups.ends, groups.counts]
    assert [each.numel() for each in fields] == [pairs, pairs, experts + 1, experts, experts]
    assert are_apart(hidden, parts, *fields, made.arrivals(experts))
    assert made.num_bytes == sum(each.nbytes for each in (made.inner, made.parts, made.indices, made.zeros))


def test_counters_are_zero_at_first() -> None:
    made = Workspace.make(3, 2, 8, 16, 8, "fast", "cpu")
    assert not made.zeros.any() and not made.arrivals(8).any() and made.arrivals(8).numel() >= 65536 // 16


@pytest.mark.parametrize(
    "changes",
    [
        {"num_pairs": 41},
        {"num_experts": 9},
        {"width": 103},
        {"inner_width": 33},
        {"is_exact": True},
    ],
)
def test_a_step_that_does_not_fit_is_refused_with_its_sizes(changes: dict[str, Any]) -> None:
    made = Workspace.make(20, 2, 8, 64, 32, "fast", "cpu")
    fits: dict[str, Any] = {
        "num_pairs": 40,
        "num_experts": 8,
        "width": 64,
        "inner_width": 32,
        "is_exact": False,
    }
    made.expect(**fits)
    step = fits | changes
    text = (
        f"the workspace of {made.num_bytes} bytes is too small for {step['num_pairs']} pairs of "
        f"{step['num_experts']} experts of {step['width']} by {step['inner_width']}"
    )
    with pytest.raises(ValueError, match=text):
        made.expect(**step)
