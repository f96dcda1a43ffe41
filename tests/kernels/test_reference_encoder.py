"""EncoderOps: a recorded layer of an encoder against torch's own layers, in steps of several texts."""

from typing import Any

import numpy as np
import pytest
import torch

from ftd.kernels.quant import QuantMatrix
from ftd.kernels.reference_graph import ReferenceGraph

D, H, F, V, PAGE, COLUMNS = 16, 2, 24, 20, 4, 3
LIMITS: dict[str, Any] = {
    "max_tokens": 24,
    "max_sequences": 3,
    "max_logits": 1,
    "page_size": PAGE,
    "max_pages_per_sequence": COLUMNS,
}


def matrix(values: torch.Tensor) -> QuantMatrix:
    array = values.detach().float().numpy()
    return QuantMatrix("f32", (array.shape[0], array.shape[1]), (array,))


def array(values: torch.Tensor) -> Any:
    return values.detach().float().numpy()


class Bert(torch.nn.Module):
    """Embeddings with positions, a norm, and torch's layer: attention in both directions, then gelu."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = torch.nn.Embedding(V, D), torch.nn.Embedding(PAGE * COLUMNS, D)
        self.norm = torch.nn.LayerNorm(D, eps=1e-6)
        self.layer = torch.nn.TransformerEncoderLayer(
            D, H, F, dropout=0.0, activation="gelu", layer_norm_eps=1e-6, batch_first=True
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the states [T, D] of one text, ids [T]."""
        x = self.norm(self.words(ids) + self.places(torch.arange(len(ids))))
        return self.layer(x[None])[0]


def record(bert: Bert) -> tuple[ReferenceGraph, Any]:
    """Record the same; return the graph and the buffer of states."""
    g = ReferenceGraph(None, **LIMITS, precision="f32")
    x, mixed, q, k, v = (g.buffer(D) for _ in range(5))
    wide, layer = g.buffer(F), bert.layer
    inputs = zip(layer.self_attn.in_proj_weight.chunk(3), layer.self_attn.in_proj_bias.chunk(3), strict=True)
    pages = np.zeros((9, H, D // H, PAGE), np.float32), np.zeros((9, H, PAGE, D // H), np.float32)
    g.embedding(x, matrix(bert.words.weight))
    g.position_embedding(x, array(bert.places.weight))
    g.layer_norm(x, x, array(bert.norm.weight), array(bert.norm.bias), 1e-6)
    g.linears([(out, matrix(w), array(b)) for out, (w, b) in zip((q, k, v), inputs, strict=True)], x)
    g.kv_store(k, v, *pages)
    g.attention(mixed, q, *pages, H, (D // H) ** -0.5, causal=False)
    g.linear(q, mixed, matrix(layer.self_attn.out_proj.weight), array(layer.self_attn.out_proj.bias))
    g.add(x, q)
    g.layer_norm(x, x, array(layer.norm1.weight), array(layer.norm1.bias), 1e-6)
    g.linear(wide, x, matrix(layer.linear1.weight), array(layer.linear1.bias))
    g.gelu(wide, wide)
    g.linear(mixed, wide, matrix(layer.linear2.weight), array(layer.linear2.bias))
    g.add(x, mixed)
    g.layer_norm(mixed, x, array(layer.norm2.weight), array(layer.norm2.bias), 1e-6)
    g.finish()
    return g, mixed


@pytest.mark.parametrize("lengths", [[7], [12, 1, 5], [3, 3]])
def test_states_of_several_texts_are_torchs(lengths: list[int], rng: np.random.Generator) -> None:
    torch.manual_seed(3)
    bert = Bert().double().eval()
    for each in bert.parameters():
        torch.nn.init.normal_(each, std=0.4)
    graph, states = record(bert)
    texts = [rng.integers(0, V, n, np.int32) for n in lengths]
    positions = np.concatenate([np.arange(n, dtype=np.int32) for n in lengths])
    table = rng.permutation(9)[: 3 * len(lengths)].reshape(-1, 3).astype(np.int32)
    pages = table[np.repeat(np.arange(len(lengths)), lengths), positions // PAGE]
    graph.run(
        np.concatenate(texts),
        positions,
        (pages * PAGE + positions % PAGE).astype(np.int32),
        np.cumsum([0, *lengths]).astype(np.int32),
        np.array(lengths, np.int32),
        table,
        np.zeros(0, np.int32),
    )
    with torch.no_grad():
        wanted = torch.cat([bert(torch.from_numpy(text).long()) for text in texts]).numpy()
    np.testing.assert_allclose(graph.view(states), wanted, atol=2e-5)


def test_a_table_needs_a_row_for_each_position() -> None:
    graph = ReferenceGraph(None, **LIMITS)
    x = graph.buffer(D)
    with pytest.raises(ValueError, match="table must have a row for each of 12 positions, got 11"):
        graph.position_embedding(x, np.zeros((11, D), np.float32))
    with pytest.raises(ValueError, match=rf"table must be float32 \[S, {D}\]"):
        graph.position_embedding(x, np.zeros((12, D + 1), np.float32))
    graph.position_embedding(x, np.zeros((12, D), np.float32))
