"""gelu against torch in float64, for every implementation."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

Get = Callable[[str], Callable[..., Any]]
AssertClose = Callable[..., None]

SHAPES = [(0, 8), (1, 1), (3, 17), (2, 255), (1, 1536), (13, 577)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", [0.1, 20.0])
def test_equals_torch(
    get: Get,
    pools: tuple[Any, ...],
    assert_close: AssertClose,
    rng: np.random.Generator,
    shape: tuple[int, int],
    scale: float,
) -> None:
    x = rng.standard_normal(shape, np.float32) * np.float32(scale)
    expected = torch.nn.functional.gelu(torch.from_numpy(x).double()).numpy()
    for pool in pools:
        assert_close(get("gelu")(x, pool=pool), expected, "elementwise")


def test_no_value_is_off_by_more_than_the_error_of_erf(get: Get) -> None:
    """Absolute, because the tail of the error function is what is approximated."""
    x = np.linspace(-8, 8, 40001, dtype=np.float32)[None, :]
    expected = torch.nn.functional.gelu(torch.from_numpy(x).double()).numpy()
    error = np.abs(get("gelu")(x) - expected)
    assert (error <= 2e-7 * np.maximum(1.0, np.abs(x))).all(), error.max()


def test_huge_values_saturate(get: Get) -> None:
    x = np.array([[-np.inf, -3e38, -1e4, 0.0, 1e4, 3e38]], np.float32)
    np.testing.assert_array_equal(get("gelu")(x), [[0, 0, 0, 0, 1e4, np.float32(3e38)]])


def test_nan_stays_nan(get: Get) -> None:
    assert np.isnan(get("gelu")(np.array([[np.nan] * 17], np.float32))).all()


def test_refuses_another_type(get: Get) -> None:
    with pytest.raises(ValueError, match=r"x must be float32 \[T, F\]"):
        get("gelu")(np.zeros((2, 3)))
