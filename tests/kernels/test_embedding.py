"""embedding against the dequantised matrix, in every format, for every implementation."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ftd.kernels.dequantize_ref import dequantize
from ftd.kernels.quant import FORMATS, QuantMatrix

Get = Callable[[str], Callable[..., Any]]


def random_matrix(name: str, rows: int, rng: np.random.Generator) -> QuantMatrix:
    """Return random planes whose values are finite."""
    shape = (rows, 256)
    planes = []
    for plane in FORMATS[name].planes:
        wanted = FORMATS[name].plane_shape(plane, shape)
        dtype = np.dtype(plane.dtype)
        if dtype.kind == "f":
            planes.append(rng.standard_normal(wanted).astype(dtype))
        elif name == "bf16":
            planes.append(
                (rng.standard_normal(wanted).astype(np.float32).view(np.uint32) >> 16).astype(dtype)
            )
        else:  # bits that are no NaN in any 8-bit float, no infinity as an exponent
            planes.append(rng.integers(0, 120, wanted).astype(dtype))
    return QuantMatrix(name, shape, tuple(planes))


@pytest.mark.parametrize("name", FORMATS)
def test_equals_rows_of_the_dequantised_matrix(
    get: Get, pools: tuple[Any, ...], rng: np.random.Generator, name: str
) -> None:
    weight = random_matrix(name, 300, rng)
    ids = np.array([0, 299, 127, 128, 0, 5], np.int32)
    for pool in pools:
        np.testing.assert_array_equal(get("embedding")(ids, weight, pool=pool), dequantize(weight)[ids])


def test_scale_multiplies_each_value_once(get: Get, rng: np.random.Generator) -> None:
    weight = random_matrix("q8_0", 7, rng)
    ids = np.array([6, 1], np.int32)
    expected = dequantize(weight)[ids] * np.float32(25.3)
    np.testing.assert_array_equal(get("embedding")(ids, weight, 25.3), expected)


def test_no_ids_give_no_rows(get: Get, rng: np.random.Generator) -> None:
    assert get("embedding")(np.zeros(0, np.int32), random_matrix("q4_k", 3, rng)).shape == (0, 256)


@pytest.mark.parametrize("wrong", [-1, 3])
def test_refuses_an_id_outside(get: Get, rng: np.random.Generator, wrong: int) -> None:
    with pytest.raises(ValueError, match=f"ids must lie in 0 to 2, got {wrong}"):
        get("embedding")(np.array([0, wrong], np.int32), random_matrix("f32", 3, rng))
