"""Random schedules through a program of all that keeps something from step to step, against the reference.

On a card small steps are padded to the sizes of captured graphs; here they are padded and run op by op. After
each step logits agree, and so does all that is kept, in places that no sequence owns too: padding is inert.
"""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="the GPU engine needs triton")

import torch
from banks import random_bank
from examples import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ftd.kernels.graph_triton import CudaGraph
from ftd.kernels.quant import QuantMatrix
from ftd.kernels.reference_graph import ReferenceGraph

D, V, PAGE, COLUMNS, SEQUENCES = 32, 11, 8, 6, 3
HEADS, CHANNELS, LATENT, TURNED = 2, 16, 16, 8
LIMITS: dict[str, Any] = {
    "max_tokens": 32,
    "max_sequences": SEQUENCES,
    "max_logits": SEQUENCES,
    "page_size": PAGE,
    "max_pages_per_sequence": COLUMNS,
}
# A page more than sequences own, and slots of which two are nobody's
PAGES, SLOTS = SEQUENCES * COLUMNS + 1, (4, 0, 2)


def kept_arrays() -> dict[str, Any]:
    """Return what is kept from step to step: pages of keys and values, latents and indices, and states."""
    rng = np.random.default_rng(5)
    shapes = {
        "keys": (PAGES, 1, CHANNELS, PAGE),
        "values": (PAGES, 1, PAGE, CHANNELS),
        "latents": (PAGES, PAGE, LATENT + TURNED),
        "indices": (PAGES, PAGE, 8),
        "inputs": (5, 3, D),
        "matrices": (5, 2, 8, 8),
    }
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


class Program:
    """One layer of each kind in ``graph``, over arrays that it keeps where the graph computes."""

    def __init__(self, graph: Any, device: str | None) -> None:
        self.graph, self.rng = graph, np.random.default_rng(3)
        kept = kept_arrays().items()
        self.kept = {
            name: each if device is None else torch.tensor(each, device=device) for name, each in kept
        }
        self.x = graph.buffer(D)
        graph.embedding(self.x, self.matrix(V, D))
        self.recurrent()
        self.attention()
        self.latents()
        self.experts()
        self.logits = graph.logit_buffer(D)
        graph.select_logit_rows(self.logits, self.x)

    def matrix(self, n: int, k: int) -> QuantMatrix:
        values = self.rng.standard_normal((n, k)).astype(np.float32) / np.float32(k**0.5)
        return QuantMatrix("f32", (n, k), (values,))

    def vector(self, *shape: int) -> Any:
        return self.rng.uniform(0.5, 1.5, shape).astype(np.float32)

    def products(self, *widths: int) -> list[Any]:
        """Record products of x, normalised; return their buffers."""
        g, normed = self.graph, self.graph.buffer(D)
        g.rms_norm(normed, self.x, self.vector(D), 1e-5)
        buffers = [g.buffer(width) for width in widths]
        g.linears([(each, self.matrix(each.width, D), None) for each in buffers], normed)
        return buffers

    def add(self, result: Any) -> None:
        self.graph.linear_add(self.x, result, self.matrix(D, result.width))

    def recurrent(self) -> None:
        g = self.graph
        qkv, a, b = self.products(D, 2, 2)
        convolved, read = g.buffer(D), g.buffer(16)
        g.causal_conv(convolved, qkv, self.vector(D, 4), self.kept["inputs"])
        g.gated_delta(read, convolved, a, b, -self.vector(2), self.vector(2), self.kept["matrices"], 1)
        self.add(read)

    def attention(self) -> None:
        g, mixed = self.graph, self.graph.buffer(HEADS * CHANNELS)
        q, k, v = self.products(HEADS * CHANNELS, CHANNELS, CHANNELS)
        frequencies = self.vector(CHANNELS // 2)
        g.rope(q, HEADS, CHANNELS, frequencies)
        g.rope(k, 1, CHANNELS, frequencies)
        pages = self.kept["keys"], self.kept["values"]
        g.kv_store(k, v, *pages)
        g.attention(mixed, q, *pages, HEADS, 0.3, window=20, sinks=self.vector(HEADS))
        self.add(mixed)

    def latents(self) -> None:
        g, mixed = self.graph, self.graph.buffer(HEADS * LATENT)
        wide = LATENT + TURNED
        q, row, queries, weights, index = self.products(HEADS * wide, wide, 2 * 8, 2, 8)
        normed = g.buffer(wide)
        g.latent_norm(normed, row, self.vector(LATENT), 1e-5)
        g.latent_store(normed, self.kept["latents"])
        g.latent_store(index, self.kept["indices"])
        chosen = g.index_select(queries, weights, self.kept["indices"], 6)
        g.latent_attention(mixed, q, self.kept["latents"], HEADS, LATENT, 0.3, chosen)
        self.add(mixed)

    def experts(self) -> None:
        g, mixed = self.graph, self.graph.buffer(D)
        normed, logits = g.buffer(D), g.buffer(6)
        g.rms_norm(normed, self.x, self.vector(D), 1e-5)
        g.linear(logits, normed, self.matrix(6, D))
        routing = g.route_topk(logits, 2)
        g.expert_ffn(mixed, normed, routing, random_bank(np.random.default_rng(7), 6, D, 32))
        g.add(self.x, mixed)


def arrays_of(lengths: dict[int, int], starts: list[int], ids: np.random.Generator, logits: int) -> list[Any]:
    """Return the arrays of a step: new tokens of some sequences, the last ``logits`` of which want logits."""
    order = list(lengths)
    counts = [lengths[sequence] for sequence in order]
    table = np.random.default_rng(1).permutation(SEQUENCES * COLUMNS).reshape(SEQUENCES, COLUMNS)[order]
    positions = np.concatenate([starts[s] + np.arange(n) for s, n in lengths.items()])
    pages = table[np.repeat(np.arange(len(order)), counts), positions // PAGE]
    ends = np.cumsum(counts)
    arrays = (
        ids.integers(0, V, len(positions)), positions, pages * PAGE + positions % PAGE, [0, *ends],
        [starts[s] + n for s, n in lengths.items()], table, ends[len(ends) - logits :] - 1,
        [SLOTS[s] for s in order],
    )  # fmt: skip
    return [np.array(each, np.int32) for each in arrays]


Schedule = list[tuple[list[tuple[int, int]], int]]
STEPS = st.tuples(
    st.lists(
        st.tuples(st.integers(0, SEQUENCES - 1), st.sampled_from([1, 1, 1, 2, 5, 9, 13, 30])),
        min_size=1,
        max_size=SEQUENCES,
        unique_by=lambda pair: pair[0],
    ),
    st.integers(0, SEQUENCES),
)


@pytest.mark.slow
@pytest.mark.parametrize("padded", [True, False])
@settings(max_examples=examples(3))
@given(schedule=st.lists(STEPS, min_size=1, max_size=5))
@example(schedule=[([(0, 20), (2, 1)], 2), ([(2, 1), (0, 1)], 2), ([(1, 3), (0, 30), (2, 18)], 1)])
def test_any_schedule_leaves_what_the_reference_leaves(padded: bool, schedule: Schedule) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    theirs = Program(ReferenceGraph(None, **LIMITS, precision="f32"), None)
    ours = Program(CudaGraph(None, **LIMITS, precision="f32", device=device), device)
    for program in (theirs, ours):
        program.graph.finish()
    if padded:
        ours.graph._runner.pad()
    starts, ids = [0] * SEQUENCES, np.random.default_rng(2)
    for counts, logits in schedule:
        lengths: dict[int, int] = {}
        for sequence, count in counts:
            if starts[sequence] + count > PAGE * COLUMNS:
                starts[sequence] = 0  # another one takes its pages and its slot
            if sum(lengths.values()) + count <= LIMITS["max_tokens"]:
                lengths[sequence] = count
        arrays = arrays_of(lengths, starts, ids, min(logits, len(lengths)))
        theirs.graph.run(*arrays)
        ours.graph.run(*arrays)
        close(ours.graph.view(ours.logits), theirs.graph.view(theirs.logits))
        for name, wanted in theirs.kept.items():
            close(ours.kept[name].cpu().numpy(), wanted)
        for sequence, count in lengths.items():
            starts[sequence] += count


def close(actual: Any, wanted: Any) -> None:
    """Compare relative to the largest value."""
    assert actual.shape == wanted.shape
    if actual.size:
        assert np.abs(actual - wanted).max() <= 2e-4 * np.abs(wanted).max()
