"""rms_norm against torch in float64, for every implementation."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

Get = Callable[[str], Callable[..., Any]]
AssertClose = Callable[..., None]

SHAPES = [(0, 8), (1, 1), (1, 15), (3, 16), (2, 17), (7, 64), (1, 576), (5, 1031), (64, 4096)]


@pytest.mark.parametrize("shape", SHAPES)
def test_equals_torch(
    get: Get, assert_close: AssertClose, rng: np.random.Generator, shape: tuple[int, int]
) -> None:
    x = rng.standard_normal(shape, np.float32) * 3
    weight = rng.standard_normal(shape[1], np.float32)
    expected = torch.nn.functional.rms_norm(
        torch.from_numpy(x).double(), shape[1:], torch.from_numpy(weight).double(), 1e-5
    )
    assert_close(get("rms_norm")(x, weight, 1e-5), expected.numpy(), "sum")


@pytest.mark.parametrize("scale", [1e-18, 1e-3, 1e18])
def test_scale_of_the_input_cancels(get: Get, assert_close: AssertClose, scale: float) -> None:
    x = np.linspace(-1, 1, 96, dtype=np.float32)[None, :]
    ones = np.ones(96, np.float32)
    expected = x / np.sqrt(np.square(x.astype(np.float64)).mean())
    assert_close(get("rms_norm")((x * np.float32(scale)).astype(np.float32), ones, 0.0), expected, "sum")


def test_zero_row_gives_zeros(get: Get) -> None:
    assert not get("rms_norm")(np.zeros((2, 33), np.float32), np.ones(33, np.float32), 1e-6).any()


def test_bits_do_not_depend_on_threads_or_rows(isa: str, pools: Any, rng: np.random.Generator) -> None:
    from ftd.kernels._rms_norm_cy import rms_norm

    x = rng.standard_normal((37, 577), np.float32)
    weight = rng.standard_normal(577, np.float32)
    alone = np.concatenate([rms_norm(row[None], weight, 1e-6) for row in x])
    for pool in pools:
        np.testing.assert_array_equal(rms_norm(x, weight, 1e-6, pool), alone)


@pytest.mark.parametrize(
    ("x", "weight", "eps", "message"),
    [
        (
            np.zeros(3, np.float32),
            np.zeros(3, np.float32),
            0.0,
            r"x must be float32 \[T, D\], got float32 \[3\]",
        ),
        (np.zeros((1, 3)), np.zeros(3, np.float32), 0.0, "x must be float32"),
        (np.zeros((1, 3), np.float32), np.zeros(4, np.float32), 0.0, r"weight must be float32 \[3\]"),
        (np.zeros((1, 3), np.float32), np.zeros(3, np.float32), -1.0, "eps must be at least 0, got -1.0"),
    ],
)
def test_refuses(get: Get, x: Any, weight: Any, eps: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        get("rms_norm")(x, weight, eps)
