"""latent_store against assignment in NumPy, for every implementation."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Get = Callable[[str], Callable[..., Any]]


@pytest.mark.parametrize("dtype", ["f2", "f4"])
@pytest.mark.parametrize(("tokens", "channels", "size"), [(0, 8, 4), (1, 1, 1), (7, 33, 5), (40, 576, 32)])
def test_rows_go_to_their_places_and_nowhere_else(
    get: Get,
    pools: tuple[Any, ...],
    rng: np.random.Generator,
    dtype: str,
    tokens: int,
    channels: int,
    size: int,
) -> None:
    x = rng.standard_normal((tokens, channels), np.float32)
    for pool in pools:
        pages = np.full((12, size, channels), 7, dtype)
        places = rng.permutation(12 * size)[:tokens].astype(np.int32)
        expected = pages.reshape(-1, channels).copy()
        expected[places] = x
        get("latent_store")(x, pages, places, pool=pool)
        np.testing.assert_array_equal(pages.reshape(-1, channels), expected)


@pytest.mark.parametrize(
    ("shape", "place", "message"),
    [((3, 4, 8), 12, "kv_index must lie in 0 to 11"), ((3, 4, 7), 0, "pages must be float16 or float32")],
)
def test_refusals(get: Get, shape: tuple[int, ...], place: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        get("latent_store")(np.zeros((1, 8), np.float32), np.zeros(shape, "f2"), np.array([place], np.int32))
