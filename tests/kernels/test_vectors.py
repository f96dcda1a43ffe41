"""Vectors have 16 lanes with AVX2 as with AVX-512: sums of floats have one order and the same bits."""

from collections.abc import Callable

import numpy as np
import pytest
from attention_cases import arrays
from numpy.typing import NDArray

from ftd.kernels import cpu
from ftd.kernels._attention_cy import attention
from ftd.kernels._pool import set_isa
from ftd.kernels._rms_norm_cy import rms_norm
from ftd.kernels._swiglu_cy import swiglu
from tests.kernels.test_attention import CASES

Array = NDArray[np.float32]


def with_isa(level: str, action: Callable[[], Array]) -> Array:
    """Return what ``action`` gives with an instruction set, if this machine has it."""
    if cpu.ISA_LEVELS.index(level) > cpu.ISA_LEVELS.index(cpu.detected_isa()):
        pytest.skip(f"this machine has {cpu.detected_isa()}")
    before = set_isa(level)
    try:
        return action()
    finally:
        set_isa(before)


def fma(a: Array, c: Array) -> Array:
    """Return a * a + c, rounded once as far as double precision tells."""
    return (a.astype(np.float64) ** 2 + c).astype(np.float32)


def square_sum(row: Array) -> np.float32:
    """Add squares as rms_norm does: four sums of 16 lanes, of which two and two are added, then halves."""
    sums = np.zeros((4, 16), np.float32)
    whole = len(row) // 64 * 64
    for start in range(0, whole, 64):
        sums = fma(row[start : start + 64].reshape(4, 16), sums)
    for start in range(whole, len(row) // 16 * 16, 16):
        sums[0] = fma(row[start : start + 16], sums[0])
    rest = np.zeros(16, np.float32)
    rest[: len(row) % 16] = row[len(row) // 16 * 16 :]
    sums[1] = fma(rest, sums[1])
    lanes = (sums[0] + sums[1]) + (sums[2] + sums[3])
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    return np.float32(lanes[0])


@pytest.mark.parametrize("level", ["avx2", "avx512"])
@pytest.mark.parametrize("width", [16, 64, 100, 576])
def test_a_sum_has_the_order_of_16_lanes(level: str, width: int, rng: np.random.Generator) -> None:
    x = rng.standard_normal((20, width)).astype(np.float32)
    ours = with_isa(level, lambda: rms_norm(x, np.ones(width, np.float32), 1e-5))
    for row, result in zip(x, ours, strict=True):
        mean = square_sum(row) / np.float32(width)
        factor = np.float32(1) / np.sqrt(mean + np.float32(1e-5), dtype=np.float32)
        np.testing.assert_array_equal(result, row * factor)


@pytest.mark.parametrize("op", ["rms_norm", "swiglu", "prefill over tiles", "decode beside prefill", "sinks"])
def test_avx2_gives_the_bits_of_avx512(op: str, rng: np.random.Generator) -> None:
    x, y = rng.standard_normal((2, 37, 577)).astype(np.float32)
    actions: dict[str, Callable[[], Array]] = {
        "rms_norm": lambda: rms_norm(x, y[0], 1e-5),
        "swiglu": lambda: swiglu(8 * x, y),
    }
    case = arrays(CASES[op], rng) if op in CASES else {}
    action = actions.get(op, lambda: attention(**case))
    np.testing.assert_array_equal(with_isa("avx2", action), with_isa("avx512", action))
