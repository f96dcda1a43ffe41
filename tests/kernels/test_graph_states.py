"""Recurrent ops in graphs: both graphs against the eager references, states over steps, what is refused."""

from typing import Any

import numpy as np
import pytest
from weights import random_matrix

from ftd.kernels._graph_cy import CpuGraph
from ftd.kernels._pool import Pool
from ftd.kernels.causal_conv_ref import causal_conv
from ftd.kernels.gated_delta_ref import gated_delta
from ftd.kernels.reference_graph import ReferenceGraph
from ftd.kernels.sigmoid_gate_ref import sigmoid_gate

PAGE, PAGES = 4, 8
LIMITS = {
    "max_tokens": 24,
    "max_sequences": 3,
    "max_logits": 4,
    "page_size": PAGE,
    "max_pages_per_sequence": PAGES,
}
V, HK, HV, CK, CV, TAPS, SLOTS = 30, 2, 4, 8, 12, 4, 5
WIDTH = 2 * HK * CK + HV * CV
GRAPHS = [ReferenceGraph, CpuGraph]
STEPS = [([5, 1, 9], [0, 0, 0]), ([1, 1, 1], [5, 1, 9]), ([3, 2, 17], [6, 2, 10]), ([4, 1, 1], [0, 4, 27])]
STATE_INDEX = np.array([4, 0, 2], np.int32)


class Weights:
    """Random weights, and zeroed states of their own for each graph."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.embedding = random_matrix("f32", V, WIDTH, rng)
        self.conv = rng.standard_normal((WIDTH, TAPS), np.float32)
        self.decay = -rng.uniform(0.1, 2, HV).astype(np.float32)
        self.bias = rng.standard_normal(HV, np.float32)
        self.rates = random_matrix("f32", HV, WIDTH, rng)

    @staticmethod
    def states() -> tuple[Any, Any]:
        return np.zeros((SLOTS, TAPS - 1, WIDTH), np.float32), np.zeros((SLOTS, HV, CK, CV), np.float32)


def record(graph: Any, weights: Weights, states: tuple[Any, Any], tiled: bool) -> dict[str, Any]:
    """Record a small recurrent layer; return its buffers by name."""
    x, qkv, out = graph.buffer(WIDTH), graph.buffer(WIDTH), graph.buffer(HV * CV)
    a, gated = graph.buffer(HV), graph.buffer(HV * CV)
    graph.embedding(x, weights.embedding)
    graph.linear(a, x, weights.rates)
    graph.causal_conv(qkv, x, weights.conv, states[0])
    graph.gated_delta(out, qkv, a, a, weights.decay, weights.bias, states[1], HK, tiled)
    graph.sigmoid_gate(gated, out, out)
    graph.finish()
    return {"x": x, "a": a, "qkv": qkv, "out": out, "gated": gated}


def step(lengths: list[int], starts: list[int], rng: np.random.Generator) -> list[Any]:
    """Return the arrays of a step of three sequences, each with pages of its own."""
    positions = np.concatenate([np.arange(n) + s for n, s in zip(lengths, starts, strict=True)])
    table = np.arange(3 * PAGES, dtype=np.int32).reshape(3, PAGES)
    owner = np.repeat(np.arange(3), lengths)
    arrays = [
        rng.integers(0, V, len(positions)),
        positions,
        table[owner, positions // PAGE] * PAGE + positions % PAGE,
        np.cumsum([0, *lengths]),
        np.add(lengths, starts),
    ]
    return [*(array.astype(np.int32) for array in arrays), table, np.zeros(0, np.int32), STATE_INDEX]


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("make_graph", GRAPHS)
def test_equals_the_references_step_by_step(
    make_graph: Any, tiled: bool, pools: tuple[Pool | None, ...], rng: np.random.Generator
) -> None:
    weights, states, expected = Weights(rng), Weights.states(), Weights.states()
    graph = make_graph(pools[2], precision="f32", **LIMITS)
    buffers = record(graph, weights, states, tiled)
    for lengths, starts in STEPS:
        arrays = step(lengths, starts, rng)
        graph.run(*arrays)
        have = {name: graph.view(buffer).copy() for name, buffer in buffers.items()}
        where = arrays[3], arrays[1], STATE_INDEX
        want = {"qkv": causal_conv(have["x"], weights.conv, expected[0], *where)}
        rates = have["a"], have["a"], weights.decay, weights.bias
        want["out"] = gated_delta(have["qkv"], *rates, expected[1], HK, *where, tiled=tiled)
        want["gated"] = sigmoid_gate(have["out"], have["out"])
        for name, values in want.items():
            np.testing.assert_allclose(have[name], values, atol=2e-5 * np.abs(values).max())
        for ours, theirs in zip(states, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-4)
            assert not ours[[1, 3]].any(), "a slot of no sequence was written"


@pytest.mark.parametrize(
    ("state_index", "message"),
    [
        (None, "state_index must name a slot for each sequence, got None"),
        (np.array([0, 1, 5], np.int32), "state_index must lie in 0 to 4, got 5"),
        (np.array([0, -1, 2], np.int32), "state_index"),
        (np.array([1, 2, 1], np.int32), r"each slot once, got \[1, 2, 1\]"),
        (np.array([1, 2], np.int32), r"state_index must be int32 \[3\]"),
    ],
)
@pytest.mark.parametrize("make_graph", GRAPHS)
def test_a_wrong_slot_is_refused_and_nothing_runs(
    make_graph: Any, state_index: Any, message: str, rng: np.random.Generator
) -> None:
    states = Weights.states()
    graph = make_graph(None, **LIMITS)
    record(graph, Weights(rng), states, False)
    arrays = step(*STEPS[0], rng)
    with pytest.raises(ValueError, match=message):
        graph.run(*arrays[:-1], state_index)
    assert not any(state.any() for state in states)


@pytest.mark.parametrize("make_graph", GRAPHS)
def test_without_recurrent_ops_slots_are_not_looked_at(make_graph: Any, rng: np.random.Generator) -> None:
    graph = make_graph(None, **LIMITS)
    graph.embedding(graph.buffer(WIDTH), Weights(rng).embedding)
    graph.finish()
    graph.run(*step(*STEPS[0], rng)[:-1], np.array([-1, -1, -1], np.int32))


@pytest.mark.parametrize("make_graph", GRAPHS)
def test_shapes_are_checked_when_ops_are_recorded(make_graph: Any, rng: np.random.Generator) -> None:
    graph, weights = make_graph(None, **LIMITS), Weights(rng)
    conv, delta = Weights.states()
    x, out, rate = graph.buffer(WIDTH), graph.buffer(HV * CV), graph.buffer(HV)
    with pytest.raises(ValueError, match="buffer itself"):
        graph.causal_conv(x, x, weights.conv, conv)
    with pytest.raises(ValueError, match="buffer must be"):
        graph.causal_conv(out, x, weights.conv, conv)
    with pytest.raises(ValueError, match="weight must be"):
        graph.causal_conv(graph.buffer(WIDTH), x, weights.conv[:-1], conv)
    with pytest.raises(ValueError, match="qkv must have"):
        graph.gated_delta(out, out, rate, rate, weights.decay, weights.bias, delta, HK)
    with pytest.raises(ValueError, match="buffer must be"):
        graph.gated_delta(out, x, x, rate, weights.decay, weights.bias, delta, HK)
    with pytest.raises(ValueError, match="decay must be"):
        graph.gated_delta(out, x, rate, rate, weights.decay[:-1], weights.bias, delta, HK)
    with pytest.raises(ValueError, match="buffer must be"):
        graph.sigmoid_gate(out, out, x)
