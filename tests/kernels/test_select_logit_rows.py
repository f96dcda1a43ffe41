"""select_logit_rows against NumPy's indexing, for every implementation."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Get = Callable[[str], Callable[..., Any]]


@pytest.mark.parametrize("rows", [[], [0], [4], [4, 0, 2], [3, 3, 1, 0, 2, 4, 4]])
def test_equals_indexing(get: Get, pools: tuple[Any, ...], rng: np.random.Generator, rows: list[int]) -> None:
    x = rng.standard_normal((5, 37), np.float32)
    wanted = np.array(rows, np.int32)
    for pool in pools:
        np.testing.assert_array_equal(get("select_logit_rows")(x, wanted, pool=pool), x[wanted])


@pytest.mark.parametrize("row", [-1, 5])
def test_refuses_a_row_outside(get: Get, row: int) -> None:
    with pytest.raises(ValueError, match=f"rows must lie in 0 to 4, got {row}"):
        get("select_logit_rows")(np.zeros((5, 3), np.float32), np.array([row], np.int32))
