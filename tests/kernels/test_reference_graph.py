"""ReferenceGraph against a small transformer written in torch float64 without pages; and what it refuses.

CpuGraph is checked against ReferenceGraph in test_graph.
"""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ftd.kernels.quant import QuantMatrix
from ftd.kernels.reference_graph import Buffer, ReferenceGraph

V, D, H, G, C, F = 50, 32, 4, 2, 8, 40
PAGE, COLUMNS = 4, 5
EPS = 1e-5
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def weights(rng: np.random.Generator) -> Tensors:
    """Random weights of one layer, f32."""
    shapes = {
        "embed": (V, D),
        "q": (H * C, D),
        "k": (G * C, D),
        "v": (G * C, D),
        "o": (D, H * C),
        "gate": (F, D),
        "up": (F, D),
        "down": (D, F),
        "norm": (D,),
        "q_norm": (C,),
        "bias": (H * C,),
    }
    return {
        name: torch.from_numpy(rng.standard_normal(shape, np.float32) / 5) for name, shape in shapes.items()
    }


INV_FREQ = (10000.0 ** (-np.arange(C // 2) / (C // 2))).astype(np.float32)


def limits(**changed: int) -> dict[str, int]:
    return {
        "max_tokens": 16,
        "max_sequences": 2,
        "max_logits": 4,
        "page_size": PAGE,
        "max_pages_per_sequence": COLUMNS,
    } | changed


def record(weights: Tensors) -> tuple[ReferenceGraph, Buffer]:
    """Record the layer with every op of the graph; return the graph and its logits."""

    def matrix(name: str) -> QuantMatrix:
        array = weights[name].numpy()
        return QuantMatrix("f32", (array.shape[0], array.shape[1]), (array,))

    g = ReferenceGraph(**limits(), precision="f32")
    k_pages, v_pages = (
        np.zeros((2 * COLUMNS, G, C, PAGE), np.float32),
        np.zeros((2 * COLUMNS, G, PAGE, C), np.float32),
    )
    x, normed, mixed = g.buffer(D), g.buffer(D), g.buffer(H * C)
    q, k, v, gate, up = g.buffer(H * C), g.buffer(G * C), g.buffer(G * C), g.buffer(F), g.buffer(F)
    norm, bias = weights["norm"].numpy(), weights["bias"].numpy()
    g.embedding(x, matrix("embed"), scale=3.0)
    g.rms_norm(normed, x, norm, EPS)
    g.linears([(q, matrix("q"), bias), (k, matrix("k"), None), (v, matrix("v"), None)], normed)
    g.head_rms_norm(q, H, weights["q_norm"].numpy(), EPS)
    g.rope(q, H, C, INV_FREQ)
    g.rope(k, G, C, INV_FREQ)
    g.kv_store(k, v, k_pages, v_pages)
    g.attention(mixed, q, k_pages, v_pages, H, C**-0.5, window=6)
    g.linear_add(x, mixed, matrix("o"))
    g.linears([(gate, matrix("gate"), None), (up, matrix("up"), None)], x)
    g.swiglu(gate, gate, up)
    g.linear(normed, gate, matrix("down"))
    g.add(x, normed)
    last, logits = g.logit_buffer(D), g.logit_buffer(V)
    g.select_logit_rows(last, x)
    g.rms_norm(last, last, norm, EPS)
    g.linear(logits, last, matrix("embed"))
    g.finish()
    return g, logits


def torch_logits(weights: Tensors, ids: NDArray[np.int32]) -> NDArray[np.float64]:
    """Return the logits of every position, without pages, graphs or steps."""
    w = {name: tensor.double() for name, tensor in weights.items()}

    def turned(x: torch.Tensor) -> torch.Tensor:
        angle = torch.arange(len(ids))[:, None, None].double() * torch.from_numpy(INV_FREQ).double()
        pair = torch.complex(x[..., : C // 2], x[..., C // 2 :]) * torch.polar(torch.ones_like(angle), angle)
        return torch.cat([pair.real, pair.imag], dim=-1)

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, EPS)

    x = 3.0 * w["embed"][torch.from_numpy(ids).long()]
    h = norm(x, w["norm"])
    q = turned(norm((h @ w["q"].T + w["bias"]).reshape(-1, H, C), w["q_norm"])).transpose(0, 1)
    k = turned((h @ w["k"].T).reshape(-1, G, C)).transpose(0, 1).repeat_interleave(H // G, dim=0)
    v = (h @ w["v"].T).reshape(-1, G, C).transpose(0, 1).repeat_interleave(H // G, dim=0)
    behind = torch.arange(len(ids))[:, None] - torch.arange(len(ids))
    mask = (behind >= 0) & (behind < 6)
    mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=C**-0.5)
    x = x + mixed.transpose(0, 1).reshape(-1, H * C) @ w["o"].T
    x = x + (torch.nn.functional.silu(x @ w["gate"].T) * (x @ w["up"].T)) @ w["down"].T
    return (norm(x, w["norm"]) @ w["embed"].T).numpy()


TABLE = np.array([[7, 2, 9, 0, 4], [1, 3, 5, 6, 8]], np.int32)


def run(graph: ReferenceGraph, parts: list[tuple[NDArray[np.int32], int]], rows: list[int]) -> None:
    """Run one step of (new ids, tokens before them) for each sequence, in the pages of TABLE."""
    new = [len(ids) for ids, _ in parts]
    positions = [np.arange(before, before + len(ids)) for ids, before in parts]
    places = [TABLE[b][at // PAGE] * PAGE + at % PAGE for b, at in enumerate(positions)]
    graph.run(
        np.concatenate([ids for ids, _ in parts]).astype(np.int32),
        np.concatenate(positions).astype(np.int32),
        np.concatenate(places).astype(np.int32),
        np.cumsum([0, *new]).astype(np.int32),
        np.array([before + len(ids) for ids, before in parts], np.int32),
        TABLE[: len(parts)],
        np.array(rows, np.int32),
    )


def test_two_sequences_in_steps_give_torchs_logits(weights: Tensors, rng: np.random.Generator) -> None:
    first, second = rng.integers(0, V, 17).astype(np.int32), rng.integers(0, V, 9).astype(np.int32)
    graph, logits = record(weights)
    run(graph, [(first[:10], 0)], [9, 3])
    expected = torch_logits(weights, first)
    np.testing.assert_allclose(graph.view(logits), expected[[9, 3]], atol=2e-5)
    run(graph, [(first[10:16], 10), (second[:8], 0)], [5, 13])
    np.testing.assert_allclose(graph.view(logits)[0], expected[15], atol=2e-5)
    run(graph, [(first[16:], 16), (second[8:], 8)], [0, 1])
    np.testing.assert_allclose(graph.view(logits)[0], expected[16], atol=2e-5)
    np.testing.assert_allclose(graph.view(logits)[1], torch_logits(weights, second)[8], atol=2e-5)


def test_a_step_may_want_no_logits(weights: Tensors) -> None:
    graph, logits = record(weights)
    run(graph, [(np.array([1, 2], np.int32), 0)], [])
    assert graph.view(logits).shape == (0, V)


def test_num_bytes_counts_all_buffers(weights: Tensors) -> None:
    graph, _ = record(weights)
    assert graph.num_bytes == 4 * (16 * (2 * D + 2 * H * C + 2 * G * C + 2 * F) + 4 * (D + V))


def test_wrong_recordings_are_refused() -> None:
    g = ReferenceGraph(**limits())
    tokens, logits, foreign = g.buffer(8), g.logit_buffer(8), ReferenceGraph(**limits()).buffer(8)
    pages = np.zeros((4, 2, 4, PAGE + 1), np.float16), np.zeros((4, 2, PAGE + 1, 4), np.float16)
    wrong: list[tuple[str, Any]] = [
        ("another graph", lambda: g.add(tokens, foreign)),
        (r"\[logits, 8\], got \[tokens, 8\]", lambda: g.add(logits, tokens)),
        (r"got \[tokens, 9\]", lambda: g.rms_norm(g.buffer(9), tokens, np.ones(8, np.float32), EPS)),
        ("width 8 is no multiple of 3", lambda: g.head_rms_norm(tokens, 3, np.ones(4, np.float32), EPS)),
        ("inv_freq rotates 10 channels", lambda: g.rope(tokens, 1, 8, np.ones(5, np.float32))),
        (f"pages must hold {PAGE} tokens, got {PAGE + 1}", lambda: g.kv_store(tokens, tokens, *pages)),
        ("width must be at least 1", lambda: g.buffer(0)),
    ]
    for message, recording in wrong:
        with pytest.raises(ValueError, match=message):
            recording()


STEP: dict[str, Any] = {
    "ids": [3, 4, 5],
    "positions": [2, 3, 0],
    "kv_index": [30, 31, 4],
    "q_start": [0, 2, 3],
    "kv_len": [4, 1],
    "page_table": [[7, 2, 9, 0, 4], [1, 3, 5, 6, 8]],
    "logit_rows": [1, 2],
}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"ids": [3, V, 5]}, f"ids must lie in 0 to {V - 1}, got {V}"),
        ({"ids": [3, -1, 5]}, "got -1"),
        ({"positions": [2, 4, 0]}, "position of token 1 must be below 4, got 4"),
        ({"positions": [2, 3, -1]}, "position of token 2 must be below 1, got -1"),
        ({"positions": [2, 3]}, r"positions must be int32 \[3\], got int32 \[2\]"),
        ({"kv_index": [30, 31, 40]}, "kv_index must lie in 0 to 39, got 40"),
        ({"q_start": [0, 2, 4]}, "q_start must rise from 0 to 3"),
        ({"q_start": [0, 5, 3]}, "q_start must rise from 0 to 3"),
        ({"kv_len": [21, 1]}, "kv_len must lie in 0 to 20, got 21"),
        ({"page_table": [[7, 2, 9, 0, 4], [10, 0, 0, 0, 0]]}, "page_table must lie in 0 to 9, got 10"),
        ({"page_table": [[7] * 6] * 2}, "columns of page_table must lie in 1 to 5, got 6"),
        ({"logit_rows": [3]}, "logit_rows must lie in 0 to 2, got 3"),
        ({"logit_rows": [0] * 5}, "logits of a step must lie in 0 to 4, got 5"),
        ({"ids": []}, r"positions must be int32 \[0\]"),
    ],
)
def test_a_step_out_of_range_is_refused(weights: Tensors, changed: dict[str, Any], message: str) -> None:
    graph, _ = record(weights)
    graph.run(**{name: np.array(values, np.int32) for name, values in STEP.items()})
    with pytest.raises(ValueError, match=message):
        graph.run(**{name: np.array(values, np.int32) for name, values in (STEP | changed).items()})


def test_pages_past_the_end_of_a_sequence_may_hold_anything(weights: Tensors) -> None:
    graph, _ = record(weights)
    table = [[7, -1, 10**9, -5, 99], [1, -1, -1, -1, -1]]
    graph.run(**{name: np.array(values, np.int32) for name, values in (STEP | {"page_table": table}).items()})
