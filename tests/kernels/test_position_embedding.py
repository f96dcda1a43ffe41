"""position_embedding against indexing in NumPy, for every implementation."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Get = Callable[[str], Callable[..., Any]]


@pytest.mark.parametrize("shape", [(0, 8), (1, 1), (3, 17), (40, 384), (13, 577)])
def test_adds_the_row_of_each_position(
    get: Get, pools: tuple[Any, ...], rng: np.random.Generator, shape: tuple[int, int]
) -> None:
    x, table = rng.standard_normal(shape, np.float32), rng.standard_normal((50, shape[1]), np.float32)
    positions = rng.integers(0, 50, shape[0]).astype(np.int32)
    for pool in pools:
        actual = get("position_embedding")(x, positions, table, pool=pool)
        np.testing.assert_array_equal(actual, x + table[positions])


@pytest.mark.parametrize("position", [-1, 4])
def test_refuses_a_position_without_a_row(get: Get, position: int) -> None:
    x, table = np.zeros((2, 3), np.float32), np.zeros((4, 3), np.float32)
    with pytest.raises(ValueError, match=f"positions must lie in 0 to 3, got {position}"):
        get("position_embedding")(x, np.array([0, position], np.int32), table)


def test_refuses_another_width(get: Get) -> None:
    with pytest.raises(ValueError, match=r"table must be float32 \[S, 3\]"):
        get("position_embedding")(
            np.zeros((2, 3), np.float32), np.zeros(2, np.int32), np.zeros((4, 5), np.float32)
        )
