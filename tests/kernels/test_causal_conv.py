"""causal_conv against torch's conv1d in float64, for every implementation; where steps end must not show."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

Get = Callable[[str], Callable[..., Any]]
AssertClose = Callable[[NDArray[Any], NDArray[Any], str], None]


def expected(x: NDArray[np.float32], weight: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return silu of the convolution of one sequence from its start, as Qwen3-Next defines it."""
    channels, taps = weight.shape
    inputs = torch.from_numpy(x).double().T[None]
    kernel = torch.from_numpy(weight).double()[:, None]
    out = torch.nn.functional.conv1d(inputs, kernel, groups=channels, padding=taps - 1)[0, :, : len(x)]
    return torch.nn.functional.silu(out).T.numpy()


def places(lengths: list[int], starts: list[int], slots: list[int]) -> tuple[NDArray[np.int32], ...]:
    """Return q_start, positions and state_index of a step."""
    positions = [start + np.arange(count) for count, start in zip(lengths, starts, strict=True)]
    arrays = np.cumsum([0, *lengths]), np.concatenate(positions), np.array(slots)
    return tuple(array.astype(np.int32) for array in arrays)


@pytest.mark.parametrize(("channels", "taps"), [(1, 2), (3, 4), (17, 4), (129, 3), (260, 4), (40, 16)])
def test_equals_the_definition_however_steps_end(
    get: Get,
    pools: tuple[Any, ...],
    rng: np.random.Generator,
    assert_close: AssertClose,
    channels: int,
    taps: int,
) -> None:
    x = rng.standard_normal((23, channels), np.float32)
    weight = rng.standard_normal((channels, taps), np.float32)
    whole = expected(x, weight)
    for pool in pools:
        for cuts in ([23], [1] * 23, [2, 1, 13, 7], [taps - 1, 24 - taps]):
            state = rng.standard_normal((2, taps - 1, channels), np.float32)  # stale: must not be read
            other = state[0].copy()
            out, start = [], 0
            for count in cuts:
                where = places([count], [start], [1])
                out.append(get("causal_conv")(x[start : start + count], weight, state, *where, pool=pool))
                start += count
            assert_close(np.concatenate(out), whole, "sum")
            padded = np.concatenate([np.zeros((taps - 1, channels), np.float32), x])
            np.testing.assert_array_equal(state[1], padded[-(taps - 1) :])
            np.testing.assert_array_equal(state[0], other)


def test_sequences_of_a_step_do_not_meet(
    get: Get, pools: tuple[Any, ...], rng: np.random.Generator, assert_close: AssertClose
) -> None:
    texts = [rng.standard_normal((count, 70), np.float32) for count in (9, 4, 12)]
    weight = rng.standard_normal((70, 4), np.float32)
    state = np.full((5, 3, 70), np.nan, np.float32)
    slots = [4, 0, 2]
    for pool in pools:
        parts: list[list[NDArray[np.float32]]] = [[], [], []]
        starts = [0, 0, 0]
        for lengths in ([1, 4, 0], [7, 0, 3], [1, 0, 9]):
            rows = [text[s : s + n] for text, s, n in zip(texts, starts, lengths, strict=True)]
            where = places(lengths, starts, slots)
            out = get("causal_conv")(np.concatenate(rows), weight, state, *where, pool=pool)
            for i, piece in enumerate(np.split(out, np.cumsum(lengths)[:-1])):
                parts[i].append(piece)
                starts[i] += lengths[i]
        for text, pieces in zip(texts, parts, strict=True):
            assert_close(np.concatenate(pieces), expected(text, weight), "sum")
    assert np.isnan(state[[1, 3]]).all()


def test_large_inputs_stay_finite(get: Get) -> None:
    x = np.array([[1e4, -1e4, 80.0, -80.0]], np.float32)
    weight = np.array([[0, 1]] * 4, np.float32)
    out = get("causal_conv")(x, weight, np.zeros((1, 1, 4), np.float32), *places([1], [0], [0]))
    np.testing.assert_allclose(out, [[1e4, 0, 80, 0]], atol=1e-30)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": np.zeros((2, 4), np.float64)}, "x must be float32"),
        ({"weight": np.zeros((5, 4), np.float32)}, r"weight must be float32 \[4, K\]"),
        ({"weight": np.zeros((4, 1), np.float32)}, "taps must lie in 2 to 16, got 1"),
        ({"weight": np.zeros((4, 17), np.float32)}, "taps"),
        ({"state": np.zeros((2, 2, 4), np.float32)}, r"state must be float32 \[slots, 3, 4\]"),
        ({"q_start": np.array([0, 1], np.int32)}, "q_start must rise from 0 to 2"),
        ({"positions": np.zeros(3, np.int32)}, "positions"),
        ({"state_index": np.array([2], np.int32)}, "state_index must lie in 0 to 1, got 2"),
        ({"state_index": np.array([-1], np.int32)}, "state_index"),
    ],
)
def test_refuses_what_cannot_be(get: Get, changed: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "x": np.zeros((2, 4), np.float32),
        "weight": np.zeros((4, 4), np.float32),
        "state": np.zeros((2, 3, 4), np.float32),
        "q_start": np.array([0, 2], np.int32),
        "positions": np.arange(2, dtype=np.int32),
        "state_index": np.array([1], np.int32),
    }
    with pytest.raises(ValueError, match=message):
        get("causal_conv")(**arguments | changed)
