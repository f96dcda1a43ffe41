"""sigmoid_gate against torch in float64, for every implementation."""

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
    x, gate = rng.standard_normal((2, *shape), np.float32) * np.float32(scale)
    expected = torch.from_numpy(x).double() * torch.from_numpy(gate).double().sigmoid()
    for pool in pools:
        assert_close(get("sigmoid_gate")(x, gate, pool=pool), expected.numpy(), "elementwise")


def test_each_value_is_accurate_relative_to_itself(get: Get) -> None:
    gate = np.linspace(-80, 80, 20001, dtype=np.float32)[None, :]
    expected = torch.from_numpy(gate).double().sigmoid().numpy()
    np.testing.assert_allclose(get("sigmoid_gate")(np.ones_like(gate), gate), expected, rtol=4e-7, atol=1e-37)


def test_huge_gates_saturate_and_nan_stays_nan(get: Get) -> None:
    gate = np.array([[-3e38, -1e4, 0.0, 1e4, 3e38]], np.float32)
    np.testing.assert_array_equal(get("sigmoid_gate")(np.full_like(gate, 2), gate), [[0, 0, 1, 2, 2]])
    gate = np.array([[np.nan] * 17], np.float32)
    assert np.isnan(get("sigmoid_gate")(np.ones_like(gate), gate)).all()


def test_refuses_another_shape(get: Get) -> None:
    with pytest.raises(ValueError, match=r"gate must be float32 \[2, 3\]"):
        get("sigmoid_gate")(np.zeros((2, 3), np.float32), np.zeros((2, 4), np.float32))
