"""The recorded GPU program against the reference graph: ops that are fused, and those that are left alone."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="the GPU engine needs triton")

import torch
from banks import random_bank
from weights import random_matrix

from ftd.kernels import attention_prefill_triton, cuda_program
from ftd.kernels.cuda_fusion import fuse
from ftd.kernels.graph_triton import CudaGraph
from ftd.kernels.quant import QuantMatrix
from ftd.kernels.reference_graph import ReferenceGraph

LIMITS: dict[str, Any] = {
    "max_tokens": 4,
    "max_sequences": 2,
    "max_logits": 2,
    "page_size": 16,
    "max_pages_per_sequence": 2,
}
STEP = [
    np.array(values, np.int32)
    for values in ([3, 1, 2], [0, 1, 0], [0, 1, 16], [0, 2, 3], [2, 1], [[0, 0], [1, 0]], [1, 2])
]


def matrix(rows: int, columns: int, seed: int) -> QuantMatrix:
    """A random f32 weight."""
    values = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32) * np.float32(0.2)
    return QuantMatrix("f32", (rows, columns), (values,))


def graphs() -> tuple[ReferenceGraph, CudaGraph]:
    """One of each, in f32."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return (
        ReferenceGraph(None, **LIMITS, precision="f32"),
        CudaGraph(None, **LIMITS, precision="f32", device=device),
    )


def record_mlp(g: Any, scale: float) -> tuple[Any, Any]:
    """Norm, gate and up, activation, down, a scaled sum, a norm: what a layer's second half does."""
    x, normed, gate, up = g.buffer(32), g.buffer(32), g.buffer(48), g.buffer(48)
    g.embedding(x, matrix(8, 32, 1), 2.0)
    g.rms_norm(normed, x, np.linspace(0.5, 1.5, 32, dtype=np.float32), 1e-5)
    g.linears([(gate, matrix(48, 32, 2), None), (up, matrix(48, 32, 3), None)], normed)
    g.geglu(gate, gate, up)
    g.linear(normed, gate, matrix(32, 48, 4), np.linspace(-1, 1, 32, dtype=np.float32))
    g.add(x, normed, scale)
    hidden, rows = g.buffer(32), g.logit_buffer(32)
    g.rms_norm(hidden, x, np.ones(32, np.float32), 1e-5)
    g.select_logit_rows(rows, hidden)
    return hidden, rows


def test_a_fused_layer_computes_what_its_ops_do() -> None:
    views = []
    for g in graphs():
        results = record_mlp(g, 0.5)
        g.finish()
        g.run(*STEP)
        views.append([g.view(each).copy() for each in results])
    for theirs, ours in zip(*views, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_fusion_leaves_what_somebody_still_reads() -> None:
    """The sum x += y stays an op of its own when the norm of x is not the next thing."""
    views = []
    for g in graphs():
        x, y, out = g.buffer(32), g.buffer(32), g.logit_buffer(32)
        g.embedding(x, matrix(8, 32, 1))
        g.rms_norm(y, x, np.ones(32, np.float32), 1e-5)
        g.add(x, y, 0.25)
        g.linear_add(x, y, matrix(32, 32, 2))
        g.add(x, y)
        g.select_logit_rows(out, x)
        g.finish()
        g.run(*STEP)
        views.append(g.view(out).copy())
    np.testing.assert_allclose(views[1], views[0], rtol=1e-4, atol=1e-4)


def test_the_mlp_takes_three_launches_fewer() -> None:
    _, g = graphs()
    record_mlp(g, 1.0)
    before = [type(op).__name__ for op in g._program]
    after = [type(op).__name__ for op in fuse(g._program)]
    assert before == [
        *("Embed", "RmsNorm", "Product", "Gate", "Product", "Add", "RmsNorm", "SelectRows"),
    ]
    assert after == ["Embed", "GatedProduct", "Product", "AddNorm", "SelectRows"]
    assert isinstance(g._program[0], cuda_program.Embed)


def test_a_norm_before_a_product_of_codes_stays_a_launch_of_its_own() -> None:
    _, g = graphs()
    x, normed, out = g.buffer(32), g.buffer(32), g.buffer(8)
    g.rms_norm(normed, x, np.ones(32, np.float32), 1e-5)
    g.linear(out, normed, random_matrix("q4_0", 8, 32, np.random.default_rng(1)))
    assert [type(op).__name__ for op in fuse(g._program)] == ["RmsNorm", "Product"]


def record_two_products(g: Any, read_again: bool) -> Any:
    """x += a product, the norm of x, a product of that, which may be read again."""
    x, normed, out = g.buffer(32), g.buffer(32), g.buffer(32)
    g.embedding(x, matrix(8, 32, 1), 2.0)
    g.embedding(normed, matrix(8, 32, 2), 1.0)
    g.linear_add(x, normed, matrix(32, 32, 3))
    g.rms_norm(normed, x, np.linspace(0.5, 1.5, 32, dtype=np.float32), 1e-2)
    g.linear(out, normed, matrix(32, 32, 4))
    if read_again:
        g.add(out, normed, 1.0)
    g.add(out, x, 1.0)
    rows = g.logit_buffer(32)
    g.select_logit_rows(rows, out)
    return rows


@pytest.mark.parametrize("read_again", [False, True])
def test_a_norm_between_two_products_is_folded_into_them_if_nothing_else_reads_it(read_again: bool) -> None:
    views = []
    for g in graphs():
        rows = record_two_products(g, read_again)
        if isinstance(g, CudaGraph):
            names = [type(op).__name__ for op in fuse(g._program)]
            assert ("RmsNorm" in names) == read_again, names
            rows = record_two_products(g := graphs()[1], read_again)
        g.finish()
        for _ in range(2):
            g.run(*STEP)
        views.append(g.view(rows).copy())
    np.testing.assert_allclose(views[1], views[0], rtol=1e-4, atol=1e-4)


def record_experts(g: Any) -> tuple[Any, Any]:
    """Norm, router, choice, experts, their sum."""
    x, normed, logits, mixed = (g.buffer(width) for width in (32, 32, 8, 32))
    g.embedding(x, matrix(8, 32, 1), 2.0)
    g.rms_norm(normed, x, np.linspace(0.5, 1.5, 32, dtype=np.float32), 1e-5)
    g.linear(logits, normed, matrix(8, 32, 2), np.linspace(-0.1, 0.1, 8, dtype=np.float32))
    routing = g.route_topk(logits, 3)
    g.expert_ffn(mixed, normed, routing, random_bank(np.random.default_rng(3), 8, 32, 32))
    g.add(x, mixed)
    out = g.logit_buffer(32)
    g.select_logit_rows(out, x)
    return routing, out


def test_a_router_is_one_launch() -> None:
    results = []
    for g in graphs():
        routing, out = record_experts(g)
        if isinstance(g, CudaGraph):
            names = [type(op).__name__ for op in fuse(g._program)]
            assert names == ["Embed", "Router", "Experts", "SelectRows"]
        g.finish()
        g.run(*STEP)
        results.append((*g.routed(routing), g.view(out).copy()))
    (their_ids, their_weights, theirs), (ids, weights, ours) = results
    np.testing.assert_array_equal(ids, their_ids)
    np.testing.assert_allclose(weights, their_weights, rtol=1e-5)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


PROMPT_LIMITS: dict[str, Any] = {
    "max_tokens": 40,
    "max_sequences": 3,
    "max_logits": 3,
    "page_size": 16,
    "max_pages_per_sequence": 28,
}
# New tokens and earlier ones of each sequence: prompts, one beside decode, decode, more than a bucket holds
PROMPT_STEPS = (
    ([5, 1, 9], [380, 20, 0]),
    ([1, 14], [385, 21]),
    ([1, 1], [386, 35]),
    ([36], [387]),
    ([18, 1, 2], [423, 36, 9]),
)


def record_attention(g: Any, device: str | None) -> Any:
    """Heads that rotate, attention over pages of random keys and values, experts, logits."""
    rng = np.random.default_rng(7)
    x, normed, logits, mixed = (g.buffer(width) for width in (32, 32, 8, 32))
    q, k, v, heads = (g.buffer(width) for width in (128, 64, 64, 128))
    pages = [rng.standard_normal((84, 1, *rest)).astype(np.float32) for rest in ((64, 16), (16, 64))]
    k_pages, v_pages = pages if device is None else [torch.from_numpy(each).to(device) for each in pages]
    g.embedding(x, matrix(8, 32, 1), 2.0)
    g.linears([(q, matrix(128, 32, 2), None), (k, matrix(64, 32, 3), None), (v, matrix(64, 32, 4), None)], x)
    frequencies = (1e4 ** -np.linspace(0, 1, 32)).astype(np.float32)
    g.rope(q, 2, 64, frequencies)
    g.rope(k, 1, 64, frequencies)
    g.kv_store(k, v, k_pages, v_pages)
    g.attention(heads, q, k_pages, v_pages, 2, 0.1)
    g.linear_add(x, heads, matrix(32, 128, 5))
    g.rms_norm(normed, x, np.linspace(0.5, 1.5, 32, dtype=np.float32), 1e-5)
    g.linear(logits, normed, matrix(8, 32, 2))
    routing = g.route_topk(logits, 3)
    g.expert_ffn(mixed, normed, routing, random_bank(np.random.default_rng(3), 8, 32, 32))
    g.add(x, mixed)
    out = g.logit_buffer(32)
    g.select_logit_rows(out, x)
    g.finish()
    return out


def prompt_step(lengths: list[int], starts: list[int]) -> list[Any]:
    """The arrays of a step of PROMPT_STEPS; each sequence's last token has logits."""
    positions = np.concatenate([s + np.arange(n) for n, s in zip(lengths, starts, strict=True)])
    table = np.random.default_rng(1).permutation(84).reshape(3, 28)[: len(lengths)]
    pages = table[np.repeat(np.arange(len(lengths)), lengths), positions // 16]
    ends = np.cumsum(lengths)
    arrays = (
        np.arange(sum(lengths)) * 5 % 8, positions, pages * 16 + positions % 16, [0, *ends],
        np.array(lengths) + starts, table, ends - 1,
    )  # fmt: skip
    return [np.array(each, np.int32) for each in arrays]


def test_short_prompts_padded_to_a_bucket_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a captured graph runs on a card: rows, sequences and blocks of padding leave no trace."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":  # blocks of padding end at once, which takes the interpreter a second a step
        monkeypatch.setattr(attention_prefill_triton, "WANTED_PROGRAMS", 8)
    reference = ReferenceGraph(None, **PROMPT_LIMITS, precision="f32")
    g = CudaGraph(None, **PROMPT_LIMITS, precision="f32", device=device)
    theirs, ours = record_attention(reference, None), record_attention(g, device)
    assert g._runner is not None
    g._runner.pad()
    buckets, shares = [], []
    for lengths, starts in PROMPT_STEPS:
        arrays = prompt_step(lengths, starts)
        reference.run(*arrays)
        g.run(*arrays)
        np.testing.assert_allclose(g.view(ours), reference.view(theirs), rtol=2e-4, atol=2e-4)
        step = g._runner._step
        assert step is not None
        buckets.append((step.num_tokens, len(step.kv_len), step.num_decode))
        shares.append(max((int(blocks.rows[:, 3].max()) for blocks in step.blocks.values()), default=0))
    assert buckets == [(16, 3, 3), (16, 3, 3), (2, 2, 2), (36, 1, 0), (32, 3, 3)]
    assert shares[0] > 1, "keys of no block are shared"


def test_misuse_is_refused() -> None:
    _, g = graphs()
    with pytest.raises(ValueError, match="finish"):
        g.run(*STEP)
    x = g.buffer(32)
    with pytest.raises(ValueError, match=r"weight must be \[32, 32\]"):
        g.linear(x, x, matrix(16, 32, 1))
    for record in (g.linear, g.linear_add):
        with pytest.raises(ValueError, match="the product of a buffer cannot go to the buffer itself"):
            record(x, x, matrix(32, 32, 1))
    with pytest.raises(ValueError, match=r"weight must be \[32, 32\], got \[16, 32\]"):
        g.linear_add(g.buffer(32), x, matrix(16, 32, 1))
    with pytest.raises(ValueError, match="width"):
        g.buffer(0)
    g.embedding(x, matrix(8, 32, 1))
    g.finish()
    with pytest.raises(ValueError, match="after finish"):
        g.add(x, x)
    with pytest.raises(ValueError, match="ids"):
        g.run(np.array([9, 1, 2], np.int32), *STEP[1:])


@pytest.mark.gpu
def test_steps_that_queue_up_behind_a_busy_card_stay_what_they_were() -> None:
    """As parts of a prompt do, which nobody awaits: each step's own ids are embedded."""
    theirs, ours = graphs()
    x_theirs, x_ours = theirs.buffer(32), ours.buffer(32)
    for g, x in ((theirs, x_theirs), (ours, x_ours)):
        g.embedding(x, matrix(8, 32, 1))
        g.finish()
    steps = [[np.array([a, b, a ^ b], np.int32), *STEP[1:]] for a, b in np.ndindex(4, 4)]
    torch.cuda._sleep(2_000_000_000)  # cycles: about a second
    found = []
    for step in steps:
        ours.run(*step)
        found.append(ours.device_view(x_ours).clone())
    for step, values in zip(steps, found, strict=True):
        theirs.run(*step)
        np.testing.assert_array_equal(values.cpu().numpy(), theirs.view(x_theirs))
