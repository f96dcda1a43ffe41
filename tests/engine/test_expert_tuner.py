"""The correction of the split while it serves, against simulated steps: it ends, whatever the times are."""

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from ftd.engine.expert_tuner import MAX_SHIFT, PAIRS, SETTLE_STEPS, WINDOW_STEPS, Tuner, shifted

MAX_STEPS = (3 * MAX_SHIFT + 2) * PAIRS * 2 * (WINDOW_STEPS + SETTLE_STEPS)


def serve(
    times: dict[int, float], noise: float, seed: int, steps: int = MAX_STEPS
) -> tuple[Tuner, list[int]]:
    """Serve steps whose mean depends on the shift in force; return the tuner and its best after each."""
    noises = iter(np.random.default_rng(seed).standard_normal(steps).tolist())
    tuner, best = Tuner(), list[int]()
    for _ in range(steps):
        tuner.observe(round(1e6 * times[tuner.shift] * (1 + noise * next(noises))))
        best.append(tuner.best)
    return tuner, best


@pytest.mark.parametrize(("fastest", "seed"), [(-2, 1), (-1, 2), (0, 3), (1, 4), (2, 5)])
def test_it_finds_the_fastest_shift_and_stays(fastest: int, seed: int) -> None:
    times = {shift: 1 + 0.06 * abs(shift - fastest) for shift in range(-3, 4)}
    tuner, _ = serve(times, 0.05, seed)
    assert tuner.has_ended and tuner.best == tuner.shift == fastest


def test_what_makes_no_difference_changes_nothing() -> None:
    moved = [serve(dict.fromkeys(range(-3, 4), 1.0), 0.2, seed)[0].best for seed in range(8)]
    assert moved == [0] * 8


def test_where_nothing_is_gained_trials_end_with_the_first_pair_lost() -> None:
    steps = [np.argmax([shift != 0 for shift in _shifts(1.1)]), sum(shift != 0 for shift in _shifts(1.1))]
    assert steps == [WINDOW_STEPS + SETTLE_STEPS - 1, 2 * (WINDOW_STEPS + SETTLE_STEPS)]


def _shifts(time: float) -> list[int]:
    """The shift in force after each step, if all others take ``time`` times as long as none."""
    tuner, shifts = Tuner(), list[int]()
    for _ in range(MAX_STEPS):
        tuner.observe(round(1e6 * (time if tuner.shift else 1.0)))
        shifts.append(tuner.shift)
    assert tuner.has_ended and tuner.best == 0 and tuner.num_trials == 2
    return shifts


@settings(max_examples=examples(10))
@given(st.lists(st.floats(0.5, 2.0), min_size=7, max_size=7), st.integers(0, 1 << 20))
def test_it_turns_at_most_once_and_ends(times: list[float], seed: int) -> None:
    tuner, best = serve(dict(zip(range(-3, 4), times, strict=True)), 0.3, seed)
    moves = np.diff([0, *best])
    moves = moves[moves != 0]
    assert tuner.has_ended and tuner.shift == tuner.best and abs(tuner.best) <= MAX_SHIFT
    assert np.count_nonzero(np.diff(moves)) <= 1 and len(moves) <= 3 * MAX_SHIFT
    assert not tuner.observe(1) and tuner.num_trials <= 3 * MAX_SHIFT + 2


def test_a_shift_keeps_forced_choices() -> None:
    assert shifted([0, 0, 2, 1, 2], 1) == [0, 0, 2, 2, 3]
    assert shifted([0, 0, 2, 1, 2], -1) == [0, 0, 2, 1, 1]
    assert shifted([0, 1, 2, 1, 2], -2) == [0, 1, 2, 1, 1]
