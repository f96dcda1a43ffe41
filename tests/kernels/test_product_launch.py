"""Launches of products: what any kernel, format and card can take, and shares of K by the plain rule."""

import pytest

pytest.importorskip("triton", reason="the GPU engine needs triton")

from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from ftd.kernels.device_matrix import DeviceMatrix
from ftd.kernels.product_launch import (
    DECODE_TOKENS,
    SPLIT_TOKENS,
    choose_launch,
    decode_launch,
    in_words,
    is_decode,
    parts,
    prefill_launch,
    squared_tiles,
)
from ftd.kernels.quant import FORMATS
from ftd.kernels.word_product_triton import CODE_FORMATS, unit_columns

# What a program of an H200 may have, and the rows of its tensor cores' smallest tile
SHARED_BYTES, TILE_ROWS = 227 << 10, 16
ROWS = st.one_of(
    st.integers(1, 300_000), st.sampled_from([1, 64, 2047, 2048, 4096, 4097, 16383, 16384, 151936])
)
COLUMNS = st.one_of(st.integers(1, 30_000), st.sampled_from([32, 64, 512, 544, 1024, 2048, 4096, 14336]))


def weight_of(name: str, rows: int, columns: int) -> DeviceMatrix:
    return DeviceMatrix(name, (rows, columns), ())


WEIGHTS = st.builds(weight_of, st.sampled_from(sorted(FORMATS)), ROWS, COLUMNS)
# Columns in whole blocks, often in whole tiles
BLOCKS = st.one_of(*(st.integers(1, 60).map(size.__mul__) for size in (32, 512, 1024)))
WORDS = st.builds(weight_of, st.sampled_from(sorted(CODE_FORMATS)), ROWS, BLOCKS)
PRECISIONS = st.sampled_from(["fast", "f32"])


def is_power(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


@given(WEIGHTS, st.integers(1, 5000), PRECISIONS)
def test_tiles_are_powers_of_two_that_hold_the_tokens(
    weight: DeviceMatrix, tokens: int, precision: str
) -> None:
    launch = choose_launch(weight, tokens, precision)
    assert all(is_power(size) for size in (launch.bn, launch.bk, launch.bt, launch.splits, launch.warps))
    assert launch.stages >= 1
    if is_decode(tokens, precision):
        assert launch == decode_launch(weight, tokens, precision) and launch.bt >= tokens
    else:
        assert launch == prefill_launch(weight, tokens, precision) and launch.splits == 1


@given(WORDS, st.integers(2, SPLIT_TOKENS))
def test_a_product_of_words_takes_whole_units_and_warps(weight: DeviceMatrix, tokens: int) -> None:
    launch = decode_launch(weight, tokens, "fast")
    assert launch.bk % unit_columns(weight.format) == 0 and launch.bn % (TILE_ROWS * launch.warps) == 0


@given(WORDS)
def test_one_token_takes_the_largest_tile_that_ends_where_the_row_does(weight: DeviceMatrix) -> None:
    """Or the smallest where none does: it has the least beyond the row."""
    launch = decode_launch(weight, 1, "fast")
    most = decode_launch(weight_of(weight.format, weight.shape[0], 2048), 1, "fast").bk
    even = [size for size in (512, 1024, 2048) if size <= most and weight.shape[1] % size == 0]
    assert launch.bk == max(even, default=512)
    assert launch.bt == launch.splits == 1


@given(WEIGHTS, st.integers(1, 5000), PRECISIONS)
def test_words_are_of_codes_in_blocks_of_32_on_the_fast_path(
    weight: DeviceMatrix, tokens: int, precision: str
) -> None:
    expected = precision == "fast" and weight.format in CODE_FORMATS and weight.shape[1] % 32 == 0
    assert in_words(weight, precision) == expected
    if not expected and is_decode(tokens, precision):
        assert decode_launch(weight, tokens, precision).bt >= TILE_ROWS


@given(
    st.one_of(ROWS, st.integers(1, 64).map(lambda n: 256 * n)),
    st.sampled_from([32, 64]),
    st.sampled_from([128, 256]),
)
def test_k_is_divided_no_further_than_programs_are_wanted(rows: int, tile: int, programs: int) -> None:
    enough = [count for count in (1, 2, 4, 8) if ceil(rows / tile) * count >= programs]
    assert parts(rows, tile, programs) == min([*enough, 8])


@given(WEIGHTS, st.integers(1, DECODE_TOKENS), PRECISIONS)
def test_sums_of_squares_are_one_of_each_tile_of_rows(
    weight: DeviceMatrix, tokens: int, precision: str
) -> None:
    tiles = squared_tiles(weight, tokens, precision)
    bn = choose_launch(weight, tokens, precision).bn
    assert (tiles - 1) * bn < weight.shape[0] <= tiles * bn


@given(ROWS, COLUMNS, st.integers(1, 5000), PRECISIONS)
def test_operands_of_all_stages_fit_a_program(rows: int, columns: int, tokens: int, precision: str) -> None:
    """Of floats: both lie in shared memory in the type that is multiplied; the kernel keeps the sums."""
    for name, item_bytes in (("bf16", 2), ("f32", 4)):
        weight = weight_of(name, rows, columns)
        launch = choose_launch(weight, tokens, "fast" if name == "bf16" else precision)
        held = (launch.bn + launch.bt) * launch.bk * item_bytes * max(1, launch.stages - 1)
        assert held <= SHARED_BYTES


@pytest.mark.parametrize(("precision", "last"), [("fast", 64), ("f32", 16)])
def test_few_tokens_read_the_weight_once(precision: str, last: int) -> None:
    assert is_decode(last, precision) and not is_decode(last + 1, precision)


def test_a_wide_prompt_takes_the_largest_tiles() -> None:
    """And one that would leave multiprocessors idle (132 of them) takes smaller ones."""
    wide, narrow = weight_of("q4_0", 128 * 66, 4096), weight_of("q4_0", 128 * 65, 4096)
    assert prefill_launch(wide, 256, "fast").bn == 2 * prefill_launch(narrow, 256, "fast").bn
