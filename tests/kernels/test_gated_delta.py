"""gated_delta against transformers' two definitions, recurrent and chunked, for every implementation."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

Get = Callable[[str], Callable[..., Any]]
AssertClose = Callable[[NDArray[Any], NDArray[Any], str], None]
# key heads, value heads, key channels, value channels
SHAPES = [(1, 1, 1, 1), (2, 4, 24, 40), (2, 2, 16, 64), (1, 3, 7, 65), (2, 6, 128, 128), (3, 3, 33, 17)]


class Text:
    """The inputs of one sequence, and what transformers makes of them in float64."""

    def __init__(self, shape: tuple[int, int, int, int], length: int, rng: np.random.Generator) -> None:
        self.shape = shape
        self.key_heads, value_heads, key, value = shape
        widths = 2 * self.key_heads * key + value_heads * value
        self.qkv = rng.standard_normal((length, widths), np.float32)
        self.a = rng.standard_normal((length, value_heads), np.float32) * np.float32(3)
        self.b = rng.standard_normal((length, value_heads), np.float32) * np.float32(3)
        self.decay = -np.exp(rng.uniform(-3, 1.5, value_heads)).astype(np.float32)
        self.bias = rng.standard_normal(value_heads, np.float32)

    def expected(self, tiled: bool = False, chunked: bool = False) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the results [T, Hv * Cv] and the last state [Hv, Ck, Cv]."""
        from transformers.models.qwen3_next import modeling_qwen3_next as theirs

        rule = theirs.torch_chunk_gated_delta_rule if chunked else theirs.torch_recurrent_gated_delta_rule
        _, value_heads, key, value = self.shape
        parts = torch.from_numpy(self.qkv)[None].split(
            [self.key_heads * key, self.key_heads * key, value_heads * value], dim=2
        )
        q, k = (part.view(1, -1, self.key_heads, key) for part in parts[:2])
        if tiled:
            q, k = (part.repeat(1, 1, value_heads // self.key_heads, 1) for part in (q, k))
        g = torch.from_numpy(self.decay) * torch.nn.functional.softplus(torch.from_numpy(self.a + self.bias))
        out, state = rule(
            q,
            k,
            parts[2].view(1, -1, value_heads, value),
            g=g[None],
            beta=torch.from_numpy(self.b)[None].sigmoid(),
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )
        return out[0].flatten(1).numpy(), state[0].numpy()

    def run(self, op: Any, state: Any, first: int, last: int, slot: int, **more: Any) -> NDArray[np.float32]:
        """Run tokens ``first`` to ``last`` as one step of one sequence."""
        rows = slice(first, last)
        where = [[0, last - first], np.arange(first, last), [slot]]
        weights = self.decay, self.bias, state, self.key_heads
        places = (np.array(part, np.int32) for part in where)
        result: NDArray[np.float32] = op(
            self.qkv[rows], self.a[rows], self.b[rows], *weights, *places, **more
        )
        return result


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tiled", [False, True])
def test_equals_the_definition(
    get: Get,
    pools: tuple[Any, ...],
    rng: np.random.Generator,
    assert_close: AssertClose,
    shape: tuple[int, int, int, int],
    tiled: bool,
) -> None:
    text = Text(shape, 19, rng)
    out, last = text.expected(tiled)
    for pool in pools:
        state = rng.standard_normal((3, *shape[1:]), np.float32)  # stale: must not be read
        others = state[[0, 2]].copy()
        ours = text.run(get("gated_delta"), state, 0, 19, 1, tiled=tiled, pool=pool)
        assert_close(ours, out, "softmax")
        assert_close(state[1], last, "softmax")
        np.testing.assert_array_equal(state[[0, 2]], others)


def test_equals_the_chunked_definition(get: Get, rng: np.random.Generator) -> None:
    text = Text((2, 4, 32, 48), 150, rng)
    out, last = text.expected(chunked=True)
    state = np.zeros((1, 4, 32, 48), np.float32)
    ours = text.run(get("gated_delta"), state, 0, 150, 0)
    # The chunked form inverts a matrix in float32: it is the less exact of the two.
    np.testing.assert_allclose(ours, out, atol=2e-5)
    np.testing.assert_allclose(state[0], last, atol=2e-5)


@pytest.mark.parametrize("cuts", [[1] * 40, [3, 1, 30, 6], [39, 1]])
def test_where_steps_end_does_not_show(isa: str, cuts: list[int], rng: np.random.Generator) -> None:
    from ftd.kernels._gated_delta_cy import gated_delta

    text = Text((2, 4, 32, 72), 40, rng)
    state = np.zeros((1, 4, 32, 72), np.float32)
    whole = text.run(gated_delta, state, 0, 40, 0)
    other, parts, start = np.zeros_like(state), [], 0
    for count in cuts:
        parts.append(text.run(gated_delta, other, start, start + count, 0))
        start += count
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    np.testing.assert_array_equal(other, state)


def test_sequences_of_a_step_do_not_meet(get: Get, pools: tuple[Any, ...], rng: np.random.Generator) -> None:
    shape = (1, 2, 16, 80)
    texts = [Text(shape, count, rng) for count in (5, 1, 8)]
    for text in texts:
        text.decay, text.bias = texts[0].decay, texts[0].bias
    op = get("gated_delta")
    alone, states = [], np.zeros((4, *shape[1:]), np.float32)
    for text, slot in zip(texts, (3, 0, 1), strict=True):
        alone.append(text.run(op, states, 0, len(text.qkv), slot))
    for pool in pools:
        together = np.full((4, *shape[1:]), 7, np.float32)
        result = op(
            *(np.concatenate([getattr(text, name) for text in texts]) for name in ("qkv", "a", "b")),
            texts[0].decay,
            texts[0].bias,
            together,
            1,
            np.array([0, 5, 6, 6, 14], np.int32),
            np.concatenate([np.arange(5), [0], np.arange(8)]).astype(np.int32),
            np.array([3, 0, 2, 1], np.int32),
            pool=pool,
        )
        np.testing.assert_array_equal(result, np.concatenate(alone))
        np.testing.assert_array_equal(together[[0, 1, 3]], states[[0, 1, 3]])
        assert (together[2] == 7).all(), "a sequence without tokens keeps its state"


def test_extreme_rates_stay_finite(get: Get) -> None:
    qkv = np.ones((3, 3), np.float32)
    a = np.array([[500.0], [-500.0], [0.0]], np.float32)
    b = np.array([[-500.0], [500.0], [90.0]], np.float32)
    state = np.zeros((1, 1, 1, 1), np.float32)
    where = [np.array(values, np.int32) for values in ([0, 3], [0, 1, 2], [0])]
    rate = np.array([-1.0], np.float32)
    out = get("gated_delta")(qkv, a, b, rate, np.zeros(1, np.float32), state, 1, *where)
    # nothing is written, then the state becomes the value, and stays it
    np.testing.assert_allclose(out, [[0.0], [1.0], [1.0]], atol=1e-5)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"qkv": np.zeros((2, 31), np.float32)}, "qkv must have 32 channels: 2 key heads of 4 twice"),
        ({"a": np.zeros((2, 3), np.float32)}, r"a must be float32 \[2, 4\]"),
        ({"b": np.zeros((1, 4), np.float32)}, r"b must be float32 \[2, 4\]"),
        ({"decay": np.zeros(3, np.float32)}, "decay"),
        ({"bias": np.zeros(3, np.float32)}, "bias"),
        ({"key_heads": 3}, "multiple of key heads, got 4 and 3"),
        ({"key_heads": 0}, "multiple of key heads"),
        ({"state": np.zeros((1, 4, 4), np.float32)}, "state must be float32"),
        ({"state_index": np.array([1], np.int32)}, "state_index must lie in 0 to 0"),
        ({"q_start": np.array([0, 3], np.int32)}, "q_start"),
    ],
)
def test_refuses_what_cannot_be(get: Get, changed: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "qkv": np.zeros((2, 32), np.float32),
        "a": np.zeros((2, 4), np.float32),
        "b": np.zeros((2, 4), np.float32),
        "decay": np.zeros(4, np.float32),
        "bias": np.zeros(4, np.float32),
        "state": np.zeros((1, 4, 4, 4), np.float32),
        "key_heads": 2,
        "q_start": np.array([0, 2], np.int32),
        "positions": np.arange(2, dtype=np.int32),
        "state_index": np.array([0], np.int32),
    }
    with pytest.raises(ValueError, match=message):
        get("gated_delta")(**arguments | changed)
