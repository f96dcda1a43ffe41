"""The ops of attention over latents in a GPU program, each alone, against the reference graph."""

import pytest

pytest.importorskip("triton", reason="the GPU engine needs triton")

from typing import Any

import numpy as np
from lone_ops import LIMITS, PAGE, PAGES, STEPS, Given, Record, check, kinds_of

from ftd.kernels import cuda_latent
from ftd.kernels.graph_triton import CudaGraph
from ftd.kernels.reference_latent import HeadRows

HEADS, LATENT, TURNED, NOPE = 2, 16, 8, 12
WIDE = LATENT + TURNED


def to_latents(given: Given) -> list[Any]:
    """What makes queries of heads into queries of latents: the transposed product, and the head's tail."""
    x, out = given.graph.buffer(HEADS * (NOPE + TURNED)), given.graph.buffer(HEADS * WIDE)
    which = HeadRows(tail=TURNED, interleaved=True, rows=NOPE, transposed=True)
    given.graph.head_linear(out, x, HEADS, given.matrix(HEADS * (NOPE + 5), LATENT), which)
    return [out]


def from_latents(given: Given) -> list[Any]:
    x, out = given.graph.buffer(HEADS * LATENT), given.graph.buffer(HEADS * 5)
    given.graph.head_linear(out, x, HEADS, given.matrix(HEADS * (NOPE + 5), LATENT), HeadRows(first=NOPE))
    return [out]


def latent_norm(given: Given) -> list[Any]:
    out, x = given.graph.buffer(WIDE), given.graph.buffer(WIDE)
    given.graph.latent_norm(out, x, given.vector(LATENT), 1e-5, interleaved=True)
    return [out]


def rotate_tail(given: Given) -> list[Any]:
    x = given.graph.buffer(HEADS * WIDE)
    given.graph.rope(x, HEADS, WIDE, np.linspace(1, 0.1, 4, dtype=np.float32), 1.5, first=LATENT)
    return [x]


def store(given: Given) -> list[Any]:
    given.graph.latent_store(given.graph.buffer(WIDE), given.keep(PAGES, PAGE, WIDE))
    return []


def attention(given: Given) -> list[Any]:
    out, q = given.graph.buffer(HEADS * LATENT), given.graph.buffer(HEADS * WIDE)
    given.graph.latent_attention(out, q, given.keep(PAGES, PAGE, WIDE), HEADS, LATENT, 0.3)
    return [out]


def chosen_attention(given: Given) -> list[Any]:
    """An indexer's choice is seen by what it leaves of attention."""
    g = given.graph
    out, q, queries, weights = (g.buffer(width) for width in (HEADS * LATENT, HEADS * WIDE, 3 * 8, 3))
    chosen = g.index_select(queries, weights, given.keep(PAGES, PAGE, 8), 8)
    g.latent_attention(out, q, given.keep(PAGES, PAGE, WIDE), HEADS, LATENT, 0.3, chosen)
    return [out]


CASES: dict[Record, list[str]] = {
    to_latents: ["HeadLinear"],
    from_latents: ["HeadLinear"],
    latent_norm: ["LatentNorm"],
    rotate_tail: ["RotateTail"],
    store: ["LatentStore"],
    attention: ["LatentAttention"],
    chosen_attention: ["IndexSelect", "LatentAttention"],
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("which", CASES, ids=lambda which: which.__name__)
def test_an_op_does_what_it_says_and_nothing_else(which: Record, step: str, device: str) -> None:
    check(which, CASES[which], step, device)


def test_keys_are_chosen_by_all_digits(device: str) -> None:
    """Beside bf16 activations too: rounded queries choose another key for one of the many rows."""
    kinds = CASES[chosen_attention]
    check(chosen_attention, kinds, "many rows", device, precision="fast", tolerance=1e-2, digits=(2, 3))


def test_every_op_stands_here() -> None:
    assert {kind for kinds in CASES.values() for kind in kinds} == kinds_of(cuda_latent)


def test_layers_share_what_lies_between_kernels(device: str) -> None:
    """Scores of an indexer, parts of attention, and a selection that nobody needs any more."""
    g = CudaGraph(None, **LIMITS, precision="f32", device=device)
    given, taken = Given(g, device), []
    pages, index_pages = given.keep(PAGES, PAGE, WIDE), given.keep(PAGES, PAGE, 8)
    chosen = None
    for _ in range(2):
        out, q, queries, weights = (g.buffer(width) for width in (HEADS * LATENT, HEADS * WIDE, 3 * 8, 3))
        chosen = g.index_select(queries, weights, index_pages, 4, chosen)
        g.latent_attention(out, q, pages, HEADS, LATENT, 0.3, chosen)
        taken.append(g.num_bytes)
    assert taken[0] == taken[1] > 0
    g.index_select(queries, weights, index_pages, 4)  # one that both are needed of
    assert g.num_bytes == taken[1] + 8 * LIMITS["max_tokens"]


def test_misfits_are_refused_when_they_are_recorded(device: str) -> None:
    g = CudaGraph(None, **LIMITS, precision="f32", device=device)
    given, row, heads = Given(g, device), g.buffer(WIDE), g.buffer(HEADS * LATENT)
    pages = given.keep(PAGES, PAGE, WIDE)
    weight = given.matrix(HEADS * (NOPE + 5), LATENT)
    with pytest.raises(ValueError, match="out must be another buffer 10 wide, got 32"):
        g.head_linear(heads, heads, HEADS, weight, HeadRows(first=NOPE))
    with pytest.raises(ValueError, match="out must be another buffer 24 wide, got 24"):
        g.latent_norm(row, row, given.vector(LATENT), 1e-5)
    with pytest.raises(ValueError, match="x must be 24 wide, got 32"):
        g.latent_store(heads, pages)
    with pytest.raises(ValueError, match="pages must hold 8 tokens, got 7"):
        g.latent_store(row, given.keep(PAGES, PAGE - 1, WIDE))
    with pytest.raises(ValueError, match="q and out must be 2 heads wide, got 24 and 32"):
        g.latent_attention(heads, row, pages, HEADS, LATENT, 0.3)
    with pytest.raises(ValueError, match="q must be 48 wide, got 32"):
        g.index_select(heads, g.buffer(2), pages, 4)
    with pytest.raises(ValueError, match="count"):
        g.index_select(g.buffer(2 * WIDE), g.buffer(2), pages, 0)
    assert not g._program
