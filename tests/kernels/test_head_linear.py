"""head_linear against NumPy's product in float64 on dequantised weights, for every implementation."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from weights import random_matrix

from ftd.kernels.dequantize_ref import dequantize
from ftd.kernels.quant import FORMATS

Get = Callable[[str], Callable[..., Any]]
AssertClose = Callable[..., None]

# T, H, N, K, tail
SHAPES = [(0, 2, 8, 32, 4), (1, 1, 1, 1, 0), (1, 16, 64, 128, 64), (5, 3, 33, 32, 6), (9, 2, 7, 96, 0)]


@pytest.mark.parametrize("shape", SHAPES)
def test_equals_numpy(
    get: Get,
    pools: tuple[Any, ...],
    assert_close: AssertClose,
    rng: np.random.Generator,
    shape: tuple[int, ...],
) -> None:
    tokens, heads, rows, columns, tail = shape
    x = rng.standard_normal((tokens, heads, columns + tail), np.float32)
    weight = random_matrix("f32", heads * rows, columns, rng)
    matrices = weight.planes[0].reshape(heads, rows, columns).astype(np.float64)
    product = np.einsum("thk,hnk->thn", x[:, :, :columns].astype(np.float64), matrices)
    for pool in pools:
        actual = get("head_linear")(x, weight, tail, pool=pool)
        assert_close(np.ascontiguousarray(actual[:, :, :rows]), product, "sum")
        np.testing.assert_array_equal(actual[:, :, rows:], x[:, :, columns:])


@pytest.mark.parametrize("name", FORMATS)
def test_every_format(get: Get, assert_close: AssertClose, rng: np.random.Generator, name: str) -> None:
    columns = max(64, FORMATS[name].block)
    weight = random_matrix(name, 6 * 5, columns, rng)
    x = rng.standard_normal((3, 6, columns), np.float32)
    expected = np.einsum("thk,hnk->thn", x.astype(np.float64), dequantize(weight).reshape(6, 5, columns))
    assert_close(get("head_linear")(x, weight), expected, "sum")


@pytest.mark.parametrize("name", ["f32", "bf16", "q4_1"])
@pytest.mark.parametrize("tokens", [1, 2, 9])
@pytest.mark.parametrize(("first", "rows"), [(0, 0), (0, 13), (13, 0), (5, 20)])
def test_a_part_of_the_rows_and_the_transposed_product(
    get: Get,
    pools: tuple[Any, ...],
    assert_close: AssertClose,
    rng: np.random.Generator,
    name: str,
    tokens: int,
    first: int,
    rows: int,
) -> None:
    """What multi-head latent attention takes from one matrix of keys and values."""
    heads, each, columns = 3, 29, 64
    weight = random_matrix(name, heads * each, columns, rng)
    used = rows or each - first
    matrices = dequantize(weight).reshape(heads, each, columns)[:, first : first + used].astype(np.float64)
    x = rng.standard_normal((tokens, heads, columns), np.float32)
    turned = rng.standard_normal((tokens, heads, used), np.float32)
    for pool in pools:
        actual = get("head_linear")(x, weight, first=first, rows=rows, pool=pool)
        assert_close(actual, np.einsum("thk,hnk->thn", x.astype(np.float64), matrices), "sum")
        actual = get("head_linear")(turned, weight, first=first, rows=rows, transposed=True, pool=pool)
        assert_close(actual, np.einsum("thk,hkn->thn", turned.astype(np.float64), matrices), "sum")


def test_pairs_of_the_tail_are_sorted(get: Get, rng: np.random.Generator) -> None:
    x = np.arange(2 * 2 * 7, dtype=np.float32).reshape(2, 2, 7)
    actual = get("head_linear")(x, random_matrix("f32", 4, 1, rng), 6, True)
    np.testing.assert_array_equal(actual[1, 0, 2:], [15, 17, 19, 16, 18, 20])


def test_bits_do_not_depend_on_the_batch(isa: str, rng: np.random.Generator) -> None:
    from ftd.kernels._head_linear_cy import head_linear

    weight = random_matrix("q8_0", 4 * 24, 64, rng)
    x = rng.standard_normal((11, 4, 64), np.float32)
    whole = head_linear(x, weight)
    for token in range(11):
        np.testing.assert_array_equal(head_linear(x[token : token + 1], weight)[0], whole[token])
    turned = rng.standard_normal((11, 4, 24), np.float32)
    whole = head_linear(turned, weight, transposed=True)
    for token in range(11):
        one = head_linear(turned[token : token + 1], weight, transposed=True)
        np.testing.assert_array_equal(one[0], whole[token])


@pytest.mark.parametrize(("first", "rows"), [(-1, 0), (0, 3), (2, 0), (1, 2)])
def test_refuses_rows_that_a_head_has_not(get: Get, rng: np.random.Generator, first: int, rows: int) -> None:
    with pytest.raises(ValueError, match="must lie in its 2 rows"):
        get("head_linear")(
            np.zeros((1, 2, 8), np.float32), random_matrix("f32", 4, 8, rng), first=first, rows=rows
        )


@pytest.mark.parametrize(
    ("shape", "rows", "tail", "interleaved", "message"),
    [
        ((2, 3, 33), 6, 0, False, "a head of x must hold 32 and 0 channels"),
        ((2, 4, 32), 6, 0, False, "multiple of 4 heads, got 6"),
        ((2, 3, 35), 6, 3, True, "even where pairs are sorted, got 3"),
        ((2, 3, 31), 6, -1, False, "tail must be at least 0"),
    ],
)
def test_refusals(
    get: Get,
    rng: np.random.Generator,
    shape: tuple[int, ...],
    rows: int,
    tail: int,
    interleaved: bool,
    message: str,
) -> None:
    with pytest.raises(ValueError, match=message):
        get("head_linear")(
            np.zeros(shape, np.float32), random_matrix("f32", rows, 32, rng), tail, interleaved
        )
