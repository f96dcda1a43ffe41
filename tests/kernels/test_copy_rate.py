"""The rate of fetching experts: what is fetched, and bytes a second by a clock that the test moves."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ftd.kernels import copy_rate
from ftd.kernels.copy_rate import REPEATS


class Pool:
    """Takes so many nanoseconds for each fetch, one after the other."""

    device = "cpu"

    def __init__(self, num_layers: int, num_experts: int, num_slots: int, times_ns: list[int]) -> None:
        self.config = SimpleNamespace(
            num_layers=num_layers, num_experts=num_experts, num_slots=num_slots, record_bytes=1000
        )
        self.now_ns = 0
        self.times_ns = iter(times_ns)
        self.fetched: list[list[list[int]]] = []

    def fetch(self, rows: torch.Tensor, number: torch.Tensor) -> None:
        assert number.tolist() == [len(rows)]
        self.fetched.append(rows.tolist())
        self.now_ns += next(self.times_ns)


def measured(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(copy_rate.time, "perf_counter_ns", lambda: pool.now_ns)
    made: Any = pool
    return copy_rate.measure(made)


def test_the_median_without_the_first_which_warms_up(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool(2, 4, 10, [10**9, 100, 50, 9_000, 200, 80])
    assert measured(pool, monkeypatch) == pytest.approx(4 * 1000 / 100e-9)
    assert len(pool.fetched) == REPEATS + 1


@pytest.mark.parametrize(("num_layers", "num_experts"), [(1, 3), (2, 4), (7, 64)])
def test_experts_of_each_layer_in_turn_go_to_staged_slots(
    num_layers: int, num_experts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots that keep experts are not written, and what was just read is not read again."""
    pool = Pool(num_layers, num_experts, 5, [1] * (REPEATS + 1))
    measured(pool, monkeypatch)
    count = min(num_experts, 16)
    for turn, rows in enumerate(pool.fetched):
        first = turn % num_layers * num_experts
        assert rows == [[first + i, 5 + i] for i in range(count)]
