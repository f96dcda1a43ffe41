"""shapes: messages typed by hand; and the comparer of the kernel tests, which must be able to fail."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from ftd.kernels.shapes import expect, expect_range

AssertClose = Callable[..., None]


def test_expect_accepts_numpy_and_torch() -> None:
    expect("x", np.zeros((2, 3), np.float16), "float16 float32", ("T", 3))
    expect("x", torch.zeros(2, 3), "float16 float32", ("T", 3))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 4), np.float32), r"x must be float16 or float32 \[T, 3\], got float32 \[2, 4\]"),
        (np.zeros(3, np.float32), r"got float32 \[3\]"),
        (np.zeros((2, 3), np.int8), r"got int8 \[2, 3\]"),
        (torch.zeros(2, 3, dtype=torch.float64), r"got float64 \[2, 3\]"),
    ],
)
def test_expect_names_what_it_got(array: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        expect("x", array, "float16 float32", ("T", 3))  # type: ignore[arg-type]


@pytest.mark.parametrize(("low", "high", "named"), [(-1, 3, -1), (0, 5, 5), (-2, 9, -2)])
def test_expect_range_names_the_value_outside(low: int, high: int, named: int) -> None:
    with pytest.raises(ValueError, match=f"ids must lie in 0 to 4, got {named}"):
        expect_range("ids", low, high, 0, 4)


@pytest.mark.parametrize(
    "wrong",
    [
        np.array([1.0, 2.001], np.float32),
        np.array([1.0, np.nan], np.float32),
        np.array([1.0, 2.0, 3.0], np.float32),
        np.array([1.0, 2.0]),
    ],
)
def test_the_comparer_fails(assert_close: AssertClose, wrong: np.ndarray) -> None:
    with pytest.raises(AssertionError):
        assert_close(wrong, np.array([1.0, 2.0]), "softmax")
