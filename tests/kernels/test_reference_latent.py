"""LatentOps: recorded latent attention against torch in float64 on keys and values that are written out.

The reference keeps a latent and a key that turns; here each head's keys and values are made of the latents as
the papers have them, and torch attends over whole texts.
"""

from typing import Any

import numpy as np
import pytest
import torch

from ftd.kernels.quant import QuantMatrix
from ftd.kernels.reference_graph import ReferenceGraph
from ftd.kernels.reference_latent import HeadRows, head_shape

D, H, LATENT, NOPE, TURNED, VALUES, V, PAGE, COLUMNS = 24, 3, 16, 8, 4, 6, 30, 4, 4
LIMITS: dict[str, Any] = {
    "max_tokens": 16,
    "max_sequences": 2,
    "max_logits": 1,
    "page_size": PAGE,
    "max_pages_per_sequence": COLUMNS,
}
SHAPES = {
    "embed": (V, D),
    "q": (H * (NOPE + TURNED), D),
    "kv_a": (LATENT + TURNED, D),
    "kv_b": (H * (NOPE + VALUES), LATENT),
    "index_q": (2 * 8, D),
    "index_w": (2, D),
    "index_k": (8, D),
}
EPS, SCALE = 1e-5, 0.3
Weights = dict[str, Any]


@pytest.fixture
def weights(rng: np.random.Generator) -> Weights:
    made = {name: rng.standard_normal(shape, np.float32) / 3 for name, shape in SHAPES.items()}
    return made | {"norm": rng.uniform(0.5, 1.5, LATENT).astype(np.float32)}


def record(weights: Weights, count: int | None) -> tuple[ReferenceGraph, Any]:
    """Record latent attention, over the ``count`` keys that an indexer chooses if it is given."""

    def product(out: Any, name: str) -> None:
        g.linear(out, x, QuantMatrix("f32", SHAPES[name], (weights[name],)))

    g, wide = ReferenceGraph(None, **LIMITS, precision="f32"), LATENT + TURNED
    x, q, row, kept = g.buffer(D), g.buffer(H * (NOPE + TURNED)), g.buffer(wide), g.buffer(wide)
    asked, mixed, out = g.buffer(H * wide), g.buffer(H * LATENT), g.buffer(H * VALUES)
    pages, index_pages = np.zeros((8, PAGE, wide), np.float32), np.zeros((8, PAGE, 8), np.float32)
    kv_b = QuantMatrix("f32", SHAPES["kv_b"], (weights["kv_b"],))
    g.embedding(x, QuantMatrix("f32", SHAPES["embed"], (weights["embed"],)))
    product(q, "q")
    product(row, "kv_a")
    g.latent_norm(kept, row, weights["norm"], EPS)
    g.latent_store(kept, pages)
    g.head_linear(asked, q, H, kv_b, HeadRows(tail=TURNED, rows=NOPE, transposed=True))
    chosen = None
    if count is not None:
        queries, shares, key = g.buffer(16), g.buffer(2), g.buffer(8)
        for buffer, name in ((queries, "index_q"), (shares, "index_w"), (key, "index_k")):
            product(buffer, name)
        g.latent_store(key, index_pages)
        chosen = g.index_select(queries, shares, index_pages, count)
    g.latent_attention(mixed, asked, pages, H, LATENT, SCALE, chosen)
    g.head_linear(out, mixed, H, kv_b, HeadRows(first=NOPE))
    g.finish()
    return g, out


def torch_attention(weights: Weights, ids: Any, count: int | None) -> Any:
    """Return [T, H * VALUES] of one text: every key and value is written out, none is kept in pages."""
    w = {name: torch.from_numpy(each).double() for name, each in weights.items()}
    x = w["embed"][torch.from_numpy(ids).long()]
    q = (x @ w["q"].T).unflatten(1, (H, NOPE + TURNED))
    latent, turned = (x @ w["kv_a"].T).split([LATENT, TURNED], dim=1)
    latent = torch.nn.functional.rms_norm(latent, (LATENT,), w["norm"], EPS)
    keys, values = (latent @ w["kv_b"].T).unflatten(1, (H, NOPE + VALUES)).split([NOPE, VALUES], dim=2)
    keys = torch.cat([keys, turned[:, None].expand(-1, H, -1)], dim=2)
    seen = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()
    if count is not None:
        heads = torch.einsum("thc,sc->ths", (x @ w["index_q"].T).unflatten(1, (2, 8)), x @ w["index_k"].T)
        scores = torch.einsum("ths,th->ts", heads.relu(), x @ w["index_w"].T)
        # The first of equals, and nothing that comes later
        scores = scores.masked_fill(~seen, -torch.inf)
        best = scores.sort(dim=1, descending=True, stable=True).indices[:, :count]
        seen &= torch.zeros_like(seen).scatter(1, best, True)
    parts = (each.transpose(0, 1) for each in (q, keys, values))
    mixed = torch.nn.functional.scaled_dot_product_attention(*parts, attn_mask=seen, scale=SCALE)
    return mixed.transpose(0, 1).flatten(1).numpy()


TABLE = np.array([[7, 2, 0, 4], [1, 3, 5, 6]], np.int32)


def run(graph: ReferenceGraph, parts: list[tuple[Any, int]]) -> None:
    """Run a step of (new ids, tokens before them) of each sequence."""
    positions = [np.arange(before, before + len(ids)) for ids, before in parts]
    places = [TABLE[b][at // PAGE] * PAGE + at % PAGE for b, at in enumerate(positions)]
    arrays = (
        np.concatenate([ids for ids, _ in parts]), np.concatenate(positions), np.concatenate(places),
        np.cumsum([0, *(len(ids) for ids, _ in parts)]), [len(ids) + before for ids, before in parts],
        TABLE[: len(parts)], [],
    )  # fmt: skip
    graph.run(*(np.array(each, np.int32) for each in arrays))


@pytest.mark.parametrize("count", [None, 3, 1])
def test_two_texts_in_steps_are_torchs(weights: Weights, count: int | None, rng: np.random.Generator) -> None:
    first, second = rng.integers(0, V, 15, np.int32), rng.integers(0, V, 7, np.int32)
    graph, out = record(weights, count)
    wanted = [torch_attention(weights, ids, count) for ids in (first, second)]
    run(graph, [(first[:9], 0)])
    np.testing.assert_allclose(graph.view(out), wanted[0][:9], atol=2e-5)
    run(graph, [(first[9:14], 9), (second[:6], 0)])
    np.testing.assert_allclose(graph.view(out), np.concatenate([wanted[0][9:14], wanted[1][:6]]), atol=2e-5)
    run(graph, [(first[14:], 14), (second[6:], 6)])
    np.testing.assert_allclose(graph.view(out), np.stack([wanted[0][14], wanted[1][6]]), atol=2e-5)


def test_shapes_of_heads() -> None:
    graph = ReferenceGraph(None, **LIMITS)
    weight = QuantMatrix("f32", (12, 5), (np.zeros((12, 5), np.float32),))
    assert head_shape(graph.buffer(3 * 7), 3, weight, HeadRows(tail=2)) == (4, 7, 6)
    assert head_shape(graph.buffer(3 * 3), 3, weight, HeadRows(first=1, transposed=True)) == (3, 3, 5)
    for width, heads, which, message in (
        (20, 3, HeadRows(), "width 20 is no multiple of 3 heads"),
        (20, 0, HeadRows(), "num_heads must lie in 1 to 20, got 0"),
        (21, 3, HeadRows(), r"a head of x must hold 5 and 0 channels, got \[0, 3, 7\]"),
        (15, 3, HeadRows(first=2, rows=3), "rows 2 to 5 of a head must lie in its 4 rows"),
    ):
        with pytest.raises(ValueError, match=message):
            head_shape(graph.buffer(width), heads, weight, which)


def test_what_cannot_be_recorded() -> None:
    graph = ReferenceGraph(None, **LIMITS)
    x, pages = graph.buffer(20), np.zeros((8, PAGE, 20), np.float32)
    with pytest.raises(ValueError, match="cannot go to the buffer itself"):
        graph.latent_norm(x, x, np.ones(16, np.float32), EPS)
    with pytest.raises(ValueError, match=f"pages must hold {PAGE} tokens, got {PAGE + 1}"):
        graph.latent_store(x, np.zeros((8, PAGE + 1, 20), np.float32))
    with pytest.raises(ValueError, match="latent must lie in 1 to 20, got 21"):
        graph.latent_attention(x, x, pages, 1, 21, SCALE)
    with pytest.raises(ValueError, match="count must lie in 1"):
        graph.index_select(x, graph.buffer(1), pages, 0)
