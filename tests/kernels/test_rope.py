"""rope against complex rotation in float64 and against transformers, for every implementation."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Get = Callable[[str], Callable[..., Any]]
AssertClose = Callable[..., None]


def frequencies(half: int, base: float = 10000.0) -> np.ndarray[Any, Any]:
    return np.asarray(base ** (-np.arange(half) / max(half, 1)), np.float32)


@pytest.mark.parametrize(
    ("tokens", "heads", "channels", "half"),
    [
        (0, 2, 8, 4),
        (1, 1, 2, 1),
        (5, 3, 64, 32),
        (3, 2, 80, 40),
        (2, 4, 96, 24),
        (7, 1, 37, 17),
        (2, 2, 256, 128),
    ],
)
def test_equals_complex_rotation(
    get: Get,
    pools: tuple[Any, ...],
    assert_close: AssertClose,
    rng: np.random.Generator,
    tokens: int,
    heads: int,
    channels: int,
    half: int,
) -> None:
    x = rng.standard_normal((tokens, heads, channels), np.float32)
    positions = rng.integers(0, 5000, tokens).astype(np.int32)
    inv_freq = frequencies(half)
    turn = 1.25 * np.exp(1j * positions[:, None, None] * inv_freq.astype(np.float64))
    turned = (x[:, :, :half] + 1j * x[:, :, half : 2 * half].astype(np.float64)) * turn
    expected = np.concatenate([turned.real, turned.imag, x[:, :, 2 * half :]], axis=2)
    for pool in pools:
        assert_close(get("rope")(x, positions, inv_freq, 1.25, pool=pool), expected, "elementwise")


@pytest.mark.parametrize("position", [100_000, 1_000_003, 2**31 - 1])
def test_far_positions_are_as_accurate_as_near_ones(
    get: Get, assert_close: AssertClose, position: int
) -> None:
    x = np.ones((1, 1, 128), np.float32)
    inv_freq = frequencies(64, 500000.0)
    angle = position * inv_freq.astype(np.float64)
    expected = np.concatenate([np.cos(angle) - np.sin(angle), np.cos(angle) + np.sin(angle)])[None, None]
    assert_close(get("rope")(x, np.array([position], np.int32), inv_freq), expected, "elementwise")


def test_position_zero_changes_nothing(get: Get, rng: np.random.Generator) -> None:
    x = rng.standard_normal((1, 3, 64), np.float32)
    np.testing.assert_array_equal(get("rope")(x, np.zeros(1, np.int32), frequencies(32)), x)


@pytest.mark.slow
def test_equals_transformers(get: Get, rng: np.random.Generator) -> None:
    import torch
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    x = rng.standard_normal((6, 3, 64), np.float32)
    positions = np.array([0, 1, 2, 77, 2047, 8191], np.int32)
    inv_freq = frequencies(32)
    angle = torch.from_numpy(positions.astype(np.float64))[:, None] * torch.from_numpy(inv_freq).double()
    twice = torch.cat([angle, angle], dim=-1)[None]
    q = torch.from_numpy(x).double().transpose(0, 1)[None]
    expected, _ = apply_rotary_pos_emb(q, q, twice.cos(), twice.sin())
    actual = get("rope")(x, positions, inv_freq)
    np.testing.assert_allclose(actual, expected[0].transpose(0, 1).numpy(), atol=1e-6)


def test_refuses_more_frequencies_than_pairs(get: Get) -> None:
    with pytest.raises(ValueError, match="inv_freq rotates 10 channels, a head has 8"):
        get("rope")(np.zeros((1, 1, 8), np.float32), np.zeros(1, np.int32), np.ones(5, np.float32))
