"""layer_norm against torch in float64, for every implementation."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

Get = Callable[[str], Callable[..., Any]]
AssertClose = Callable[..., None]

SHAPES = [(0, 8), (1, 1), (3, 17), (2, 255), (1, 1536), (13, 577), (7, 384)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mean", [0.0, 30.0])
def test_equals_torch(
    get: Get,
    pools: tuple[Any, ...],
    assert_close: AssertClose,
    rng: np.random.Generator,
    shape: tuple[int, int],
    mean: float,
) -> None:
    x = rng.standard_normal(shape, np.float32) + np.float32(mean)
    weight, bias = rng.standard_normal((2, shape[1]), np.float32)
    wide = [torch.from_numpy(array).double() for array in (x, weight, bias)]
    expected = torch.nn.functional.layer_norm(wide[0], shape[1:], wide[1], wide[2], 1e-5).numpy()
    for pool in pools:
        # the mean is subtracted from values that are mean times larger than what remains
        actual = get("layer_norm")(x, weight, bias, 1e-5, pool=pool)
        if mean:
            np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)
        else:
            assert_close(actual, expected, "sum")


def test_equal_values_become_the_bias(get: Get) -> None:
    x, bias = np.full((2, 21), 7.25, np.float32), np.arange(21, dtype=np.float32)
    np.testing.assert_array_equal(get("layer_norm")(x, np.ones(21, np.float32), bias, 1e-12), [bias, bias])


def test_nan_stays_in_its_row(get: Get, rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 40), np.float32)
    x[1, 39] = np.nan
    broken = np.isnan(get("layer_norm")(x, np.ones(40, np.float32), np.zeros(40, np.float32)))
    assert broken[1].all()
    assert broken.sum() == 40


@pytest.mark.parametrize(("size", "eps", "message"), [(4, 1e-5, "weight must be"), (3, -1.0, "eps must be")])
def test_refuses_what_does_not_fit(get: Get, size: int, eps: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        get("layer_norm")(
            np.zeros((2, 3), np.float32), np.zeros(size, np.float32), np.zeros(3, np.float32), eps
        )
