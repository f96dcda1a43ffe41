"""add against NumPy, for every implementation."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Get = Callable[[str], Callable[..., Any]]

SHAPES = [(0, 8), (1, 1), (3, 17), (2, 255), (1, 256), (1, 257), (13, 577)]


@pytest.mark.parametrize("shape", SHAPES)
def test_equals_numpy_bit_for_bit(
    get: Get, pools: tuple[Any, ...], rng: np.random.Generator, shape: tuple[int, int]
) -> None:
    x, y = rng.standard_normal((2, *shape), np.float32)
    for pool in pools:
        np.testing.assert_array_equal(get("add")(x, y, pool=pool), x + y)


@pytest.mark.parametrize("shape", SHAPES)
def test_scales_the_second(
    get: Get, pools: tuple[Any, ...], assert_close: Callable[..., None], rng: np.random.Generator, shape: Any
) -> None:
    x, y = rng.standard_normal((2, *shape), np.float32)
    for pool in pools:
        expected = x + np.float64(np.float32(0.22)) * y
        assert_close(get("add")(x, y, 0.22, pool=pool), expected, "elementwise")


def test_refuses_another_shape(get: Get) -> None:
    with pytest.raises(ValueError, match=r"y must be float32 \[2, 3\], got float32 \[3, 2\]"):
        get("add")(np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float32))
