"""The ops of encoders in CpuGraph against ReferenceGraph, and what both refuse."""

from typing import Any

import numpy as np
import pytest
from weights import random_matrix

from ftd.kernels._graph_cy import CpuGraph
from ftd.kernels._pool import Pool
from ftd.kernels.reference_graph import ReferenceGraph
from tests.kernels.test_graph import LIMITS, PAGE, PAGES, step

D, H, C = 32, 4, 8
GRAPHS = (CpuGraph, ReferenceGraph)


def small_encoder(graph: Any) -> Any:
    """Record positions, both norms and one layer of attention in both directions; return the last buffer."""
    rng = np.random.default_rng(3)
    x, normed, mixed = graph.buffer(D), graph.buffer(D), graph.buffer(H * C)
    graph.embedding(x, random_matrix("f32", 50, D, rng))
    graph.position_embedding(x, rng.standard_normal((PAGE * PAGES, D), np.float32))
    graph.layer_norm(normed, x, *rng.standard_normal((2, D), np.float32), 1e-6)
    k_pages = np.zeros((3 * PAGES, H, C, PAGE), np.float32)
    v_pages = np.zeros((3 * PAGES, H, PAGE, C), np.float32)
    graph.kv_store(normed, x, k_pages, v_pages)
    graph.attention(mixed, normed, k_pages, v_pages, H, C**-0.5, causal=False)
    graph.gelu(mixed, mixed)
    graph.layer_norm(mixed, mixed, *rng.standard_normal((2, D), np.float32), 1e-6)
    graph.finish()
    return mixed


def test_a_small_encoder_matches_the_reference(pools: tuple[Pool | None, ...]) -> None:
    graph, reference = CpuGraph(pools[2], **LIMITS), ReferenceGraph(None, **LIMITS)
    ours, theirs = small_encoder(graph), small_encoder(reference)
    for lengths in ([5, 1, 9], [1], [20, 4]):
        arrays = step(lengths, [0] * len(lengths), np.random.default_rng(1), logits=[])
        graph.run(*arrays)
        reference.run(*arrays)
        np.testing.assert_allclose(graph.view(ours), reference.view(theirs), atol=2e-5)


@pytest.mark.parametrize("make", GRAPHS)
def test_refusals(make: Any) -> None:
    graph = make(None, **LIMITS)
    x, other = graph.buffer(D), graph.buffer(D + 1)
    ones = np.ones(D, np.float32)
    with pytest.raises(ValueError, match="table must have a row for each of 64 positions, got 63"):
        graph.position_embedding(x, np.zeros((63, D), np.float32))
    with pytest.raises(ValueError, match="table must be float32"):
        graph.position_embedding(x, np.zeros((64, D + 1), np.float32))
    with pytest.raises(ValueError, match="bias must be float32"):
        graph.layer_norm(x, x, ones, np.ones(D + 1, np.float32), 1e-6)
    with pytest.raises(ValueError, match="buffer must be"):
        graph.layer_norm(other, x, ones, ones, 1e-6)
    with pytest.raises(ValueError, match="buffer must be"):
        graph.gelu(other, x)
    pages = np.zeros((4, H, C, PAGE), np.float32), np.zeros((4, H, PAGE, C), np.float32)
    with pytest.raises(ValueError, match="attention in both directions has no window, got 3"):
        graph.attention(x, x, *pages, H, 1.0, window=3, causal=False)
