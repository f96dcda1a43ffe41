"""matmul against its reference in float64, and its versions against each other bit for bit."""

import numpy as np
import pytest
from numpy.typing import NDArray
from weights import random_matrix

from ftd.kernels import cpu
from ftd.kernels._graph_cy import CpuGraph
from ftd.kernels._matmul_cy import matmul as compiled
from ftd.kernels._pool import Pool, set_isa
from ftd.kernels.dequantize_ref import dequantize
from ftd.kernels.matmul_ref import matmul, quantize_activations
from ftd.kernels.quant import FORMATS, QuantMatrix

# Largest error relative to the sum of |x||w|: float32 sums of a few hundred products; in the fast precision
# the terms of a block that a code offset cancels are larger than what is left of them.
TOLERANCE = {"fast": 4e-6, "f32": 1e-6}

# N below, at and over the heights of a tile; primes. K of one, odd and many blocks (of 256 in the k formats).
SHAPES = [(1, 1), (3, 2), (8, 3), (13, 1), (16, 8), (31, 9), (37, 5), (64, 17), (101, 4)]
TOKENS = (1, 2, 3, 5, 6, 17, 33)


def random_rows(count: int, columns: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Return activations of very different sizes, as models have them, with one block of zeros."""
    x = rng.standard_normal((count, columns)) * np.exp(rng.standard_normal((count, columns)))
    x[:, : min(32, columns // 2)] *= rng.integers(0, 2)
    return x.astype(np.float32)


def error(
    actual: NDArray[np.float32], expected: NDArray[np.float32], x: NDArray[np.float32], weight: QuantMatrix
) -> float:
    scale = np.abs(x).astype(np.float64) @ np.abs(dequantize(weight)).T.astype(np.float64) + 1e-30
    return float((np.abs(actual.astype(np.float64) - expected) / scale).max())


def columns_of(name: str, blocks: int) -> int:
    block = FORMATS[name].block
    return blocks * block if block > 1 else 32 * blocks + 5


@pytest.mark.parametrize("precision", ["fast", "f32"])
@pytest.mark.parametrize("name", list(FORMATS))
def test_matches_the_reference(name: str, precision: str, isa: str, rng: np.random.Generator) -> None:
    for rows, blocks in SHAPES:
        if FORMATS[name].block == 256 and blocks > 5:
            continue
        weight = random_matrix(name, rows, columns_of(name, blocks), rng)
        for tokens in (1, 5):
            x = random_rows(tokens, weight.shape[1], rng)
            expected = matmul(x, weight, None, precision)
            actual = compiled(x, weight, None, precision)
            assert error(actual, expected, x, weight) <= TOLERANCE[precision], (rows, blocks, tokens)


@pytest.mark.parametrize("precision", ["fast", "f32"])
@pytest.mark.parametrize("name", list(FORMATS))
def test_every_version_gives_the_same_bits_for_a_row_in_any_batch(
    name: str, precision: str, pools: tuple[Pool | None, ...], rng: np.random.Generator
) -> None:
    weight = random_matrix(name, 45, columns_of(name, 3), rng)
    x = random_rows(max(TOKENS), weight.shape[1], rng)
    bias = rng.standard_normal(45).astype(np.float32)
    before = set_isa("scalar")
    try:
        expected = compiled(x, weight, bias, precision)
        for level in cpu.ISA_LEVELS[: cpu.ISA_LEVELS.index(cpu.detected_isa()) + 1]:
            set_isa(level)
            for number, tokens in enumerate(TOKENS):
                actual = compiled(x[:tokens], weight, bias, precision, pool=pools[number % len(pools)])
                np.testing.assert_array_equal(actual, expected[:tokens], err_msg=f"{level} T={tokens}")
    finally:
        set_isa(before)


# Rows, blocks, tokens: below, at and over a tile of 16 rows and 64 at once, the 32 blocks unpacked at once,
# a tile of 16 tokens and the 256 at once.
AMX_SHAPES = [(9, 3, 40), (16, 8, 32), (45, 33, 47), (64, 32, 65), (83, 40, 257), (131, 66, 70)]


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("f32", "f16", "bf16", "fp8_b128")])
def test_tiles_of_amx_give_the_same_bits(
    name: str, pools: tuple[Pool | None, ...], rng: np.random.Generator
) -> None:
    if cpu.detected_isa() != "amx":
        pytest.skip(f"this machine has {cpu.detected_isa()}")
    for number, (rows, blocks, tokens) in enumerate(AMX_SHAPES):
        block = FORMATS[name].block
        weight = random_matrix(name, rows, -(-32 * blocks // block) * block, rng)
        x = random_rows(tokens, weight.shape[1], rng)
        x[tokens // 2, 7] = np.nan
        bias = rng.standard_normal(rows).astype(np.float32)
        before = set_isa("avx2")
        try:
            expected = compiled(x, weight, bias)
            set_isa("amx")
            actual = compiled(x, weight, bias, pool=pools[number % len(pools)])
        finally:
            set_isa(before)
        np.testing.assert_array_equal(actual, expected, err_msg=f"{rows} {blocks} {tokens}")


# Rows, columns, tokens: below, at and over a pair of tiles of rows and of tokens, and 192 rows, 512 tokens
# and eight blocks of 32 columns at once.
SPLIT_SHAPES = [(16, 32, 17), (45, 96, 33), (64, 288, 48), (33, 512, 530), (393, 544, 65), (1000, 64, 31)]
SPLIT_TOLERANCE = 2.0**-17 + TOLERANCE["f32"]  # x is two bfloat16 of 8 bits each


def test_bfloats_by_tiles_of_amx_give_the_same_bits_in_any_batch_of_eight(
    pools: tuple[Pool | None, ...], rng: np.random.Generator
) -> None:
    if cpu.detected_isa() != "amx":
        pytest.skip(f"this machine has {cpu.detected_isa()}")
    for number, (rows, columns, tokens) in enumerate(SPLIT_SHAPES):
        weight = random_matrix("bf16", rows, columns, rng)
        x = random_rows(tokens, columns, rng)
        bias = rng.standard_normal(rows).astype(np.float32) if number % 2 else None
        pool = pools[number % len(pools)]
        before = set_isa("amx")
        try:
            every = compiled(x, weight, bias, pool=pool)
            for few in (8, 9, 15, 16):
                start = tokens - few
                actual = compiled(x[start:], weight, bias, pool=pool)
                np.testing.assert_array_equal(actual, every[start:], err_msg=f"{rows} {columns} {few}")
            np.testing.assert_array_equal(compiled(x, weight, bias), every)
            exact = compiled(x, weight, bias, "f32", pool=pool)
            set_isa("avx2")
            np.testing.assert_array_equal(compiled(x, weight, bias, "f32"), exact)
        finally:
            set_isa(before)
        np.testing.assert_array_equal(compiled(x[:7], weight, bias), exact[:7])  # vectors read memory faster
        assert error(every, matmul(x, weight, bias), x, weight) <= SPLIT_TOLERANCE, (rows, columns, tokens)
        assert not np.array_equal(every, exact)  # so tiles did it


def test_bfloats_whose_products_are_subnormal_give_the_same_bits(isa: str, rng: np.random.Generator) -> None:
    weight = random_matrix("bf16", 20, 64, rng)
    bits = weight.planes[0]
    bits[:] = np.where((bits & 0x7FFF) >> 7 > 66, bits - (66 << 7), 0)  # times 2^-66
    x = random_rows(33, 64, rng) * np.float32(2.0**-64)
    every = compiled(x, weight)
    for tokens in (8, 16):
        np.testing.assert_array_equal(compiled(x[:tokens], weight), every[:tokens], err_msg=f"{tokens}")


def test_bfloats_of_a_program_give_the_bits_of_single_products(isa: str, rng: np.random.Generator) -> None:
    """Products of one x share its preparation, which a step of one token does without."""
    first, second = random_matrix("bf16", 40, 96, rng), random_matrix("bf16", 16, 96, rng)
    x, bias = random_rows(40, 96, rng), rng.standard_normal(40).astype(np.float32)
    graph = CpuGraph(
        max_tokens=40, max_sequences=1, max_logits=1, page_size=16, max_pages_per_sequence=3, precision="fast"
    )
    rows, a, b = graph.buffer(96), graph.buffer(40), graph.buffer(16)
    graph.embedding(rows, QuantMatrix("f32", x.shape, (x,)))
    graph.linears([(a, first, bias), (b, second, None)], rows)
    graph.linear_add(a, rows, first)
    graph.finish()
    for tokens in (1, 3, 40):
        count, ends = np.arange(tokens, dtype=np.int32), np.array([tokens], np.int32)
        pages = np.arange(3, dtype=np.int32)[None]
        start, no_logits = np.array([0, tokens], np.int32), np.array([], np.int32)
        graph.run(count, count, count, start, ends, pages, no_logits)
        expected = compiled(x[:tokens], first, bias) + compiled(x[:tokens], first)
        np.testing.assert_array_equal(graph.view(a), expected)
        np.testing.assert_array_equal(graph.view(b), compiled(x[:tokens], second))


def test_bfloats_that_are_no_numbers_spoil_their_row_or_token_alone(
    isa: str, rng: np.random.Generator
) -> None:
    weight = random_matrix("bf16", 40, 64, rng)
    x = random_rows(35, 64, rng)
    expected = compiled(x, weight)
    weight.planes[0][17, 3] = 0x7FC0
    x[20, 40] = np.frombuffer(b"\xff\xff\xff\xff", np.float32)[0]
    actual = compiled(x, weight)
    assert np.isnan(actual[20]).all()
    assert np.isnan(actual[:, 17]).all()
    kept = np.ones(actual.shape, bool)
    kept[20], kept[:, 17] = False, False
    np.testing.assert_array_equal(actual[kept], expected[kept])


@pytest.mark.parametrize("name", list(FORMATS))
def test_one_token_of_rows_of_whole_blocks_gives_the_same_bits_exactly(
    name: str, pools: tuple[Pool | None, ...], rng: np.random.Generator
) -> None:
    for rows, columns in ((1, 256), (13, 512), (40, 768)):
        weight = random_matrix(name, rows, columns, rng)
        x = random_rows(2, columns, rng)
        before = set_isa("scalar")
        try:
            expected = compiled(x, weight, None, "f32")[:1]
            for level in cpu.ISA_LEVELS[: cpu.ISA_LEVELS.index(cpu.detected_isa()) + 1]:
                set_isa(level)
                for pool in pools:
                    actual = compiled(x[:1], weight, None, "f32", pool=pool)
                    np.testing.assert_array_equal(actual, expected, err_msg=f"{level} {rows}")
        finally:
            set_isa(before)


# Rows, columns, tokens: panels of 16 rows, six tokens, pieces of 768 columns, 16 lanes: full, over and short.
PANEL_SHAPES = [
    (16, 768, 6),
    (33, 777, 13),
    (70, 1544, 11),
    (17, 2305, 8),
    (65, 7, 7),
    (131, 576, 32),
    (16, 4104, 3),
]


@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "q8_0", "q6_k", "fp8_b128"])
def test_panels_of_exact_rows_give_the_same_bits(
    name: str, pools: tuple[Pool | None, ...], rng: np.random.Generator
) -> None:
    for number, (rows, columns, tokens) in enumerate(PANEL_SHAPES):
        block = FORMATS[name].block
        weight = random_matrix(name, rows, columns if block == 1 else -(-columns // block) * block, rng)
        x = random_rows(tokens, weight.shape[1], rng)
        bias = rng.standard_normal(rows).astype(np.float32) if number % 2 else None
        before = set_isa("scalar")
        try:
            expected = compiled(x, weight, bias, "f32")
            for level in cpu.ISA_LEVELS[1 : cpu.ISA_LEVELS.index(cpu.detected_isa()) + 1]:
                set_isa(level)
                actual = compiled(x, weight, bias, "f32", pool=pools[number % len(pools)])
                np.testing.assert_array_equal(actual, expected, err_msg=f"{level} {rows} {columns} {tokens}")
        finally:
            set_isa(before)


def test_fp8_codes_that_are_no_numbers_and_the_largest_scales(isa: str, rng: np.random.Generator) -> None:
    weight = random_matrix("fp8_b128", 260, 256, rng)
    codes, scales = weight.planes
    codes[17, 200] = 0x7F
    scales[1, 1] = 3e38  # 256 times that is no number, but these codes times that are
    codes[128:256, 128:] = 0x01
    x = random_rows(1, 256, rng)
    expected = matmul(x, weight, None, "f32")
    actual = compiled(x, weight, None, "f32")
    assert np.flatnonzero(np.isnan(actual[0])).tolist() == [17]
    assert np.isfinite(actual[0, 128:256]).all()
    np.testing.assert_allclose(actual[0, 128:256], expected[0, 128:256], rtol=1e-4)


def test_many_tokens_and_few_rows_are_shared_by_tokens(
    isa: str, pools: tuple[Pool | None, ...], rng: np.random.Generator
) -> None:
    weight = random_matrix("q4_0", 9, 96, rng)
    x = random_rows(257, 96, rng)
    expected = compiled(x, weight)
    for pool in pools:
        np.testing.assert_array_equal(compiled(x, weight, pool=pool), expected)


def test_extreme_codes_do_not_overflow(isa: str) -> None:
    x = np.tile(np.array([-1.0, 1.0], np.float32), (3, 128)) * np.float32(5)
    for name, code in (("q4_1", 0xFF), ("q5_1", 0xFF), ("q6_k", 0xFF), ("q5_k", 0xFF), ("q4_k", 0xFF)):
        planes = []
        for plane in FORMATS[name].planes:
            shape = FORMATS[name].plane_shape(plane, (9, 256))
            dtype = np.dtype(plane.dtype)
            fill = code if dtype.kind == "u" and plane.name in ("codes", "high") else 1
            planes.append(np.full(shape, fill, dtype))
        weight = QuantMatrix(name, (9, 256), tuple(planes))
        ones = np.full((3, 256), 7.0, np.float32)
        for rows in (x[:1], x, np.abs(x), ones):
            assert error(compiled(rows, weight), matmul(rows, weight), rows, weight) <= TOLERANCE["fast"], (
                name
            )


@pytest.mark.parametrize("code", [-128, -127, 127])
def test_signed_codes_reach_both_ends(code: int, isa: str, rng: np.random.Generator) -> None:
    weight = QuantMatrix(
        "q8_0", (11, 96), (np.full((11, 96), code, np.int8), np.full((11, 3), 0.5, np.float16))
    )
    x = random_rows(4, 96, rng)
    for rows in (x[:1], x):
        assert error(compiled(rows, weight), matmul(rows, weight), rows, weight) <= TOLERANCE["fast"]


def test_no_tokens_give_no_rows(rng: np.random.Generator) -> None:
    weight = random_matrix("q4_1", 5, 64, rng)
    assert compiled(np.empty((0, 64), np.float32), weight).shape == (0, 5)
    assert matmul(np.empty((0, 64), np.float32), weight).shape == (0, 5)


def test_activations_are_rounded_by_half_a_step_at_most(rng: np.random.Generator) -> None:
    x = random_rows(20, 320, rng)
    x[:4] = np.abs(x[:4])
    x[4:8] = 1000 + x[4:8]
    blocks = x.reshape(-1, 32)
    span = np.maximum(blocks.max(axis=1), 0) - np.minimum(blocks.min(axis=1), 0)
    both_sides = 2 * np.abs(blocks).max(axis=1)
    span = np.where(span < 0.625 * both_sides, span, both_sides)
    assert (span[: 8 * 10] < 0.625 * both_sides[: 8 * 10]).all()  # values of one sign have the finer step
    step = np.repeat(span / 253, 32).reshape(x.shape)
    assert (np.abs(quantize_activations(x) - x) <= 0.501 * step + 1e-30).all()


def test_a_constant_block_is_kept() -> None:
    x = np.full((1, 64), 0.1, np.float32)
    np.testing.assert_allclose(quantize_activations(x), x, rtol=2e-7)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_no_number_spoils_its_row_alone(
    wrong: float, isa: str, rng: np.random.Generator
) -> None:
    weight = random_matrix("q4_0", 9, 96, rng)
    x = random_rows(3, 96, rng)
    expected = compiled(x, weight)
    x[1, 40] = wrong
    actual = compiled(x, weight)
    assert np.isnan(actual[1]).all()
    assert np.isnan(matmul(x, weight)[1]).all()
    np.testing.assert_array_equal(actual[[0, 2]], expected[[0, 2]])
    np.testing.assert_array_equal(compiled(x[1:2], weight), actual[1:2])


@pytest.mark.parametrize("version", [matmul, compiled])
def test_wrong_arguments_are_refused(version: object, rng: np.random.Generator) -> None:
    assert callable(version)
    weight = random_matrix("q4_1", 5, 64, rng)
    x = np.zeros((1, 64), np.float32)
    for arguments, words in (
        ((np.zeros((1, 32), np.float32), weight), "64"),
        ((x.astype(np.float64), weight), "float32"),
        ((x, weight, np.zeros(4, np.float32)), "bias"),
        ((x, weight, None, "f16"), "precision"),
    ):
        with pytest.raises(ValueError, match=words):
            version(*arguments)
