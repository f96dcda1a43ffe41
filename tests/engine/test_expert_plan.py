"""How many experts lie on a card: worked examples and the bounds that hold for all sizes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ftd.engine import expert_plan
from ftd.engine.expert_plan import ExpertNeeds, all_fit, num_slots
from ftd.errors import InvalidOption, OutOfMemory

NEEDS = ExpertNeeds(num_layers=4, num_experts=8, record_bytes=4096)


def test_everything_is_resident_where_it_fits() -> None:
    assert all_fit(NEEDS, NEEDS.num_bytes) and not all_fit(NEEDS, NEEDS.num_bytes - 1)


def test_two_layers_are_staged_and_the_rest_keeps_experts() -> None:
    assert num_slots(NEEDS, 20 * 4096 + 100) == 4


def test_a_card_without_room_for_two_layers_is_refused_with_numbers() -> None:
    with pytest.raises(OutOfMemory, match="need 65 KB, 61 KB is left"):
        num_slots(NEEDS, 15 * 4096)
    one = replace(NEEDS, staged_layers=1)
    assert num_slots(one, 15 * 4096) == 7
    with pytest.raises(OutOfMemory, match="a layer of them needs 32 KB, 28 KB is left"):
        num_slots(one, 7 * 4096)


@given(st.integers(1, 64), st.integers(1, 256), st.integers(1, 64), st.integers(0, 1 << 26))
def test_slots_and_staged_layers_fit_in_what_is_free(layers: int, experts: int, size: int, free: int) -> None:
    needs = ExpertNeeds(num_layers=layers, num_experts=experts, record_bytes=size * 4096)
    try:
        found = num_slots(needs, free)
    except OutOfMemory:
        assert free < 2 * experts * needs.record_bytes
        return
    assert 0 <= found <= layers * experts
    assert (found + 2 * experts) * needs.record_bytes <= free
    assert found == layers * experts or (found + 1 + 2 * experts) * needs.record_bytes > free


def test_the_papers_quota_is_the_ratio_of_the_rates_and_at_least_one() -> None:
    assert expert_plan.paper_quota(40.0, 100.0, 8) == [0, 1, 1, 1, 2, 2, 2, 3, 3]
    assert expert_plan.paper_quota(300.0, 100.0, 3) == [0, 1, 2, 3]


def test_a_part_of_all_experts_is_kept_though_more_would_fit() -> None:
    assert num_slots(NEEDS, NEEDS.num_bytes, 0.5) == 16
    assert num_slots(NEEDS, 20 * 4096, 0.5) == 4
    assert num_slots(NEEDS, 2 * NEEDS.num_bytes, 1.0) == 32
    assert not all_fit(NEEDS, 2 * NEEDS.num_bytes, 0.5)
    with pytest.raises(InvalidOption, match=r"from 0 to 1: 1\.5"):
        all_fit(NEEDS, NEEDS.num_bytes, 1.5)


def test_a_policy_is_one_of_five() -> None:
    names = ("ftd", "lru", "paper", "demand", "serial")
    assert [expert_plan.policy(name) for name in names] == list(expert_plan.POLICIES.values())
    with pytest.raises(InvalidOption, match="must be ftd, lru, paper, demand, serial: 'mru'"):
        expert_plan.policy("mru")
