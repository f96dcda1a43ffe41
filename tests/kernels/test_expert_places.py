"""Which experts are in slots at first, against sorting by hand."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftd.kernels.expert_places import PoolConfig, first_owners, runs


def config(num_layers: int, num_experts: int, num_slots: int, staged_layers: int = 2) -> PoolConfig:
    return PoolConfig(
        num_layers=num_layers,
        num_experts=num_experts,
        record_bytes=16,
        num_slots=num_slots,
        quota=(0,),
        weights=(1,),
        epoch_half_lives=24,
        staged_layers=staged_layers,
    )


@given(st.integers(1, 6), st.integers(1, 9), st.integers(0, 60))
def test_without_scores_layers_share_the_slots_evenly(layers: int, experts: int, slots: int) -> None:
    owners = first_owners(config(layers, experts, slots), None)
    assert owners.dtype == np.int32 and (np.diff(owners) > 0).all()
    count = np.bincount(owners // experts, minlength=layers)
    assert count.sum() == min(slots, layers * experts)
    assert count.max() - count.min() <= 1
    for layer in range(layers):
        assert [owner % experts for owner in owners if owner // experts == layer] == list(range(count[layer]))


@given(st.data(), st.integers(1, 4), st.integers(1, 6), st.integers(0, 30))
def test_the_hottest_are_in_slots_and_of_equals_the_first(
    data: st.DataObject, layers: int, experts: int, slots: int
) -> None:
    total = layers * experts
    score = data.draw(st.lists(st.integers(0, 4), min_size=total, max_size=total))
    owners = first_owners(config(layers, experts, slots), np.array(score, np.int64))
    best = sorted(range(total), key=lambda flat: (-score[flat], flat))[:slots]
    assert owners.tolist() == sorted(best)


@given(st.sets(st.integers(0, 40)))
def test_runs_are_the_pieces_that_one_copy_can_take(owners: set[int]) -> None:
    ascending = np.array(sorted(owners), np.int32)
    found = runs(ascending)
    assert [place for begin, end in found for place in range(begin, end)] == list(range(len(owners)))
    for begin, end in found:
        assert ascending[end - 1] - ascending[begin] == end - 1 - begin
    for (_, end), (begin, _) in itertools.pairwise(found):
        assert ascending[begin] - ascending[end - 1] > 1, "two runs that are one"


@pytest.mark.parametrize(("staged_layers", "staged", "places"), [(2, 16, 21), (1, 8, 13)])
def test_slots_of_whole_layers_come_behind_the_others(staged_layers: int, staged: int, places: int) -> None:
    made = config(3, 8, 5, staged_layers)
    assert (made.num_staged, made.num_places) == (staged, places)
