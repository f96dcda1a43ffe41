"""StateOps: a recurrent layer recorded in the reference's programs against torch in float64 on whole texts.

Steps end anywhere, slots are taken over by other texts, and slots of nobody stay as they are.
"""

from typing import Any

import numpy as np
import pytest
import torch

from ftd.kernels.quant import QuantMatrix
from ftd.kernels.reference_graph import ReferenceGraph

# Key heads, value heads, channels of a key and of a value, taps
HK, HV, CK, CV, TAPS, V = 1, 2, 6, 4, 4, 20
WIDTH = 2 * HK * CK + HV * CV
LIMITS: dict[str, Any] = {
    "max_tokens": 16,
    "max_sequences": 2,
    "max_logits": 1,
    "page_size": 4,
    "max_pages_per_sequence": 8,
}
SLOTS = 4
Weights = dict[str, Any]


@pytest.fixture
def weights(rng: np.random.Generator) -> Weights:
    shapes = {"embed": (V, WIDTH), "a": (HV, WIDTH), "b": (HV, WIDTH), "gate": (HV * CV, WIDTH)}
    made = {name: rng.standard_normal(shape, np.float32) / 2 for name, shape in shapes.items()}
    taps = rng.standard_normal((WIDTH, TAPS), np.float32)
    return made | {
        "taps": taps,
        "decay": -rng.uniform(0.1, 2, HV).astype(np.float32),
        "bias": made["a"][:, 0],
    }


def record(weights: Weights) -> tuple[ReferenceGraph, Any, dict[str, Any]]:
    """Record convolution, delta rule and gate; return the graph, its result and the states."""

    def matrix(name: str) -> QuantMatrix:
        return QuantMatrix("f32", weights[name].shape, (weights[name],))

    g = ReferenceGraph(None, **LIMITS, precision="f32")
    states = {
        "inputs": np.full((SLOTS, TAPS - 1, WIDTH), 9.0, np.float32),
        "matrices": np.full((SLOTS, HV, CK, CV), 9.0, np.float32),
    }
    x, qkv, a, b, read, gate = (g.buffer(n) for n in (WIDTH, WIDTH, HV, HV, HV * CV, HV * CV))
    g.embedding(x, matrix("embed"))
    g.causal_conv(qkv, x, weights["taps"], states["inputs"])
    g.linears([(a, matrix("a"), None), (b, matrix("b"), None), (gate, matrix("gate"), None)], x)
    g.gated_delta(
        read, qkv, a, b, weights["decay"], np.ascontiguousarray(weights["bias"]), states["matrices"], HK
    )
    g.sigmoid_gate(read, read, gate)
    g.finish()
    return g, read, states


def torch_layer(weights: Weights, ids: Any) -> Any:
    """Return the results [T, HV * CV] of one text from its beginning, token by token."""
    w = {name: torch.from_numpy(each).double() for name, each in weights.items()}
    x = w["embed"][torch.from_numpy(ids).long()]
    padded = torch.nn.functional.pad(x.T[None], (TAPS - 1, 0))
    qkv = torch.nn.functional.silu(torch.nn.functional.conv1d(padded, w["taps"][:, None], groups=WIDTH))[0].T
    q, k, v = qkv.split([HK * CK, HK * CK, HV * CV], dim=1)
    q, k = (each / (each.square().sum(dim=1, keepdim=True) + 1e-6).sqrt() for each in (q, k))
    kept = torch.exp(w["decay"] * torch.nn.functional.softplus(x @ w["a"].T + w["bias"]))
    corrected = torch.sigmoid(x @ w["b"].T)
    state, results = torch.zeros(HV, CK, CV).double(), []
    for t, values in enumerate(v.unflatten(1, (HV, CV))):
        state = kept[t, :, None, None] * state
        wrong = values - torch.einsum("hkv,k->hv", state, k[t])
        state = state + torch.einsum("k,hv->hkv", k[t], corrected[t, :, None] * wrong)
        results.append(torch.einsum("hkv,k->hv", state, q[t] / CK**0.5).flatten())
    return (torch.stack(results) * torch.sigmoid(x @ w["gate"].T)).numpy()


def run(graph: ReferenceGraph, parts: list[tuple[Any, int, int]]) -> None:
    """Run a step of (new ids, tokens before them, slot) of each sequence."""
    counts = [len(ids) for ids, _, _ in parts]
    arrays = (
        np.concatenate([ids for ids, _, _ in parts]),
        np.concatenate([before + np.arange(len(ids)) for ids, before, _ in parts]),
        np.zeros(sum(counts)), np.cumsum([0, *counts]), [len(ids) + before for ids, before, _ in parts],
        np.zeros((len(parts), 8)), [], [slot for _, _, slot in parts],
    )  # fmt: skip
    graph.run(*(np.array(each, np.int32) for each in arrays))


def test_texts_in_steps_of_any_length_are_torchs(weights: Weights, rng: np.random.Generator) -> None:
    texts = [rng.integers(0, V, n, np.int32) for n in (14, 9, 3)]
    wanted = [torch_layer(weights, ids) for ids in texts]
    graph, out, states = record(weights)
    # Text, its tokens, its slot; the third text takes over the slot of the first one
    for step in (
        [(0, 0, 1, 3)],
        [(0, 1, 3, 3), (1, 0, 8, 1)],
        [(1, 8, 9, 1), (0, 3, 14, 3)],
        [(2, 0, 3, 3)],
    ):
        run(graph, [(texts[text][first:last], first, slot) for text, first, last, slot in step])
        expected = np.concatenate([wanted[text][first:last] for text, first, last, _ in step])
        np.testing.assert_allclose(graph.view(out), expected, atol=1e-5)
        for each in states.values():
            assert (each[[0, 2]] == 9.0).all(), "a slot of nobody was written"


def test_what_cannot_be_recorded(weights: Weights) -> None:
    graph = ReferenceGraph(None, **LIMITS)
    x, narrow = graph.buffer(WIDTH), graph.buffer(HV)
    inputs, matrices = (
        np.zeros((SLOTS, TAPS - 1, WIDTH), np.float32),
        np.zeros((SLOTS, HV, CK, CV), np.float32),
    )
    with pytest.raises(ValueError, match="cannot go to the buffer itself"):
        graph.causal_conv(x, x, weights["taps"], inputs)
    with pytest.raises(ValueError, match=rf"state must be float32 \[slots, 3, {WIDTH}\]"):
        graph.causal_conv(graph.buffer(WIDTH), x, weights["taps"], inputs[:, 1:])
    rates = weights["decay"], weights["decay"]
    with pytest.raises(ValueError, match="multiple of key heads, got 2 and 3"):
        graph.gated_delta(graph.buffer(HV * CV), x, narrow, narrow, *rates, matrices, 3)
    with pytest.raises(ValueError, match=rf"buffer must be \[tokens, {HV * CV}\], got \[tokens, {HV}\]"):
        graph.gated_delta(narrow, x, narrow, narrow, *rates, matrices, HK)


def test_each_sequence_names_a_slot_of_the_smallest_array(weights: Weights) -> None:
    graph, _, states = record(weights)
    before = {name: each.copy() for name, each in states.items()}
    ids = np.array([1, 2], np.int32)
    for slots, message in (([0, 0], "each slot once"), ([0, SLOTS], "state_index must lie in 0 to 3, got 4")):
        with pytest.raises(ValueError, match=message):
            run(graph, [(ids, 0, slots[0]), (ids, 0, slots[1])])
    for name, each in states.items():
        np.testing.assert_array_equal(each, before[name])
