"""kv_store against a loop over single values, for every implementation."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Get = Callable[[str], Callable[..., Any]]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize(
    ("tokens", "groups", "channels", "page_size"),
    [(0, 1, 8, 4), (1, 3, 64, 32), (5, 2, 17, 3), (33, 1, 80, 16), (8, 2, 1, 1), (64, 3, 64, 32)],
)
def test_each_value_lies_where_its_index_says(
    get: Get,
    pools: tuple[Any, ...],
    rng: np.random.Generator,
    dtype: Any,
    tokens: int,
    groups: int,
    channels: int,
    page_size: int,
) -> None:
    num_pages = -(-tokens // page_size) + 2
    k, v = rng.standard_normal((2, tokens, groups, channels), np.float32)
    index = rng.permutation(num_pages * page_size)[:tokens].astype(np.int32)
    for pool in pools:
        k_pages = np.full((num_pages, groups, channels, page_size), 7, dtype)
        v_pages = np.full((num_pages, groups, page_size, channels), 7, dtype)
        get("kv_store")(k, v, k_pages, v_pages, index, pool=pool)
        left = np.ones((num_pages, page_size), bool)
        for token, place in enumerate(index):
            page, offset = divmod(int(place), page_size)
            left[page, offset] = False
            np.testing.assert_array_equal(k_pages[page, :, :, offset], k[token].astype(dtype))
            np.testing.assert_array_equal(v_pages[page, :, offset], v[token].astype(dtype))
        assert (k_pages.transpose(0, 3, 1, 2)[left] == 7).all()
        assert (v_pages.transpose(0, 2, 1, 3)[left] == 7).all()


def test_every_half_is_rounded_as_numpy_rounds(get: Get) -> None:
    """All f16 values, their midpoints and the neighbours of both, subnormals and overflow included."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middle = (halves[:-1] + halves[1:]) / 2
    values = np.concatenate([halves, middle, np.nextafter(middle, 0), np.nextafter(middle, np.float32(1e9))])
    values = np.concatenate([values, [65519.99, 65520.0, 1e38, np.inf, np.nan, 1e-30]]).astype(np.float32)
    values = np.concatenate([values, -values])
    k = values.reshape(1, 1, -1)
    k_pages = np.zeros((1, 1, values.size, 1), np.float16)
    v_pages = np.zeros((1, 1, 1, values.size), np.float16)
    get("kv_store")(k, k, k_pages, v_pages, np.zeros(1, np.int32))
    with np.errstate(over="ignore"):
        expected = values.astype(np.float16)
    number = ~np.isnan(values)
    for pages in (k_pages, v_pages):
        np.testing.assert_array_equal(pages.reshape(-1), expected)
        np.testing.assert_array_equal(
            pages.reshape(-1)[number].view(np.uint16), expected[number].view(np.uint16)
        )


@pytest.mark.parametrize("index", [-1, 8])
def test_refuses_an_index_outside_the_pages(get: Get, index: int) -> None:
    k = np.zeros((1, 1, 2), np.float32)
    k_pages, v_pages = np.zeros((2, 1, 2, 4), np.float16), np.zeros((2, 1, 4, 2), np.float16)
    with pytest.raises(ValueError, match=f"kv_index must lie in 0 to 7, got {index}"):
        get("kv_store")(k, k, k_pages, v_pages, np.array([index], np.int32))


def test_refuses_pages_of_two_types(get: Get) -> None:
    k = np.zeros((1, 1, 2), np.float32)
    with pytest.raises(ValueError, match="v_pages must be float16"):
        get("kv_store")(
            k,
            k,
            np.zeros((2, 1, 2, 4), np.float16),
            np.zeros((2, 1, 4, 2), np.float32),
            np.zeros(1, np.int32),
        )


def test_compiled_version_refuses_pages_it_could_only_copy(isa: str) -> None:
    from ftd.kernels._kv_store_cy import kv_store

    k = np.zeros((1, 1, 2), np.float32)
    k_pages, v_pages = np.zeros((4, 1, 2, 4), np.float16)[::2], np.zeros((2, 1, 4, 2), np.float16)
    with pytest.raises(ValueError, match="k_pages must be contiguous and writeable"):
        kv_store(k, k, k_pages, v_pages, np.zeros(1, np.int32))
