"""DeviceMemory: what a program takes is what was counted before, and buffers have the types they need."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="the GPU engine needs triton")

import torch
from banks import random_bank

from ftd.kernels.cuda_experts import Experts
from ftd.kernels.cuda_memory import DeviceMemory
from ftd.kernels.graph_triton import CudaGraph
from ftd.kernels.quant import QuantMatrix
from ftd.kernels.step import Limits
from tests.kernels import test_cuda_schedules

SIZES: dict[str, Any] = {
    "max_tokens": 6,
    "max_sequences": 2,
    "max_logits": 3,
    "page_size": 8,
    "max_pages_per_sequence": 4,
}
D = 32
ONES = np.ones(D, np.float32)


def weight(rows: int, seed: int = 1) -> QuantMatrix:
    values = np.random.default_rng(seed).standard_normal((rows, D), np.float32)
    return QuantMatrix("f32", (rows, D), (values,))


def graph_of(precision: Any) -> CudaGraph:
    return CudaGraph(None, **SIZES, precision=precision, device="cpu")


@pytest.mark.parametrize("precision", ["fast", "f32"])
def test_what_is_counted_on_meta_is_what_is_taken(precision: Any) -> None:
    """A program is sized before anything is allocated: by recording it where nothing has memory."""
    sizes = test_cuda_schedules.LIMITS
    counted = CudaGraph(None, **sizes, precision=precision, device="meta")
    test_cuda_schedules.Program(counted, "meta")
    taken = CudaGraph(None, **sizes, precision=precision, device="cpu")
    test_cuda_schedules.Program(taken, "cpu")
    expected = counted.measure()
    taken.finish()
    assert expected == taken.num_bytes > 0


@pytest.mark.parametrize(("precision", "item"), [("fast", torch.bfloat16), ("f32", torch.float32)])
def test_sums_that_grow_and_logits_are_f32_and_others_are_what_is_multiplied(
    precision: Any, item: torch.dtype
) -> None:
    g = graph_of(precision)
    x, normed, inner, mixed, last = (*(g.buffer(D) for _ in range(4)), g.logit_buffer(D))
    g.embedding(x, weight(9))
    g.rms_norm(normed, x, ONES, 1e-5)
    g.linear(inner, normed, weight(D, 2))
    g.swiglu(mixed, inner, normed)
    g.linear_add(x, mixed, weight(D, 3))
    g.select_logit_rows(last, x)
    before = g.num_bytes
    g._memory.place_buffers(g._program, g._buffers, g._groups)
    types = {name: each.tensor.dtype for name, each in {"x": x, "last": last}.items()}
    assert types == {"x": torch.float32, "last": torch.float32}
    for each in (normed, inner, mixed):
        assert each.tensor.dtype == item and each.tensor.shape == (6, D)
    rows = 6 * (4 + 3 * item.itemsize) + 3 * 4
    scratch = graph_of(precision)._memory
    scratch.place_buffers([op for op in g._program if hasattr(op, "precision")], [], {})
    assert g.num_bytes - before == rows * D + scratch.buffer_bytes


def test_buffers_of_one_product_are_columns_of_one_tensor() -> None:
    g = graph_of("fast")
    x, q, k, v = g.buffer(D), g.buffer(8), g.buffer(5), g.buffer(3)
    g.embedding(x, weight(9))
    g.linears([(q, weight(8, 2), None), (k, weight(5, 3), None), (v, weight(3, 4), None)], x)
    g._memory.place_buffers(g._program, g._buffers, g._groups)
    for each, first in ((q, 0), (k, 8), (v, 13)):
        assert each.tensor.stride() == (16, 1) and each.tensor.storage_offset() == first
    assert len({each.tensor.untyped_storage().data_ptr() for each in (q, k, v)}) == 1


def test_what_nothing_touches_gets_no_memory() -> None:
    g = graph_of("f32")
    x, unused = g.buffer(D), g.buffer(1 << 40)
    g.embedding(x, weight(9))
    g.finish()
    assert unused.tensor is None
    with pytest.raises(ValueError, match="fused buffers have no values"):
        g.view(unused)


def test_layers_of_one_shape_share_what_is_needed_between_kernels() -> None:
    memory = DeviceMemory(Limits(**SIZES), "fast", "cpu")
    pages = torch.zeros((9, 2, 16, 8), dtype=torch.float16)
    first = memory.attention_workspace(4, pages)
    taken = memory.buffer_bytes
    assert taken == 4 * (first.parts.numel() + first.counts.numel()) > 0
    assert memory.attention_workspace(4, torch.zeros_like(pages)) is first and memory.buffer_bytes == taken
    assert memory.attention_workspace(8, pages) is not first and memory.buffer_bytes > taken


def test_the_same_array_is_uploaded_once_while_recording() -> None:
    memory = DeviceMemory(Limits(**SIZES), "fast", "cpu")
    values = np.arange(5, dtype=np.float32)
    placed = memory.vector(values)
    assert memory.vector(values) is placed and memory.vector(values.copy()) is not placed
    values[:] = 0  # the host's may change: it was copied
    assert placed.tolist() == [0, 1, 2, 3, 4]
    matrix = weight(7)
    assert memory.matrix([matrix]) is memory.matrix([matrix])
    memory.forget()
    assert memory.vector(values).tolist() == [0] * 5


def test_experts_of_all_layers_share_a_workspace_for_the_largest() -> None:
    g, rng = graph_of("fast"), np.random.default_rng(2)
    x, out = g.buffer(D), g.buffer(D)
    logits = [g.buffer(4), g.buffer(6)]
    g.embedding(x, weight(9))
    for scores, chosen, inner in zip(logits, (3, 1), (16, 64), strict=True):
        g.linear(scores, x, weight(scores.width, 5))
        g.expert_ffn(out, x, g.route_topk(scores, chosen), random_bank(rng, scores.width, D, inner))
    before = g.num_bytes
    g._memory.place_expert_workspace(g._program)
    layers = [op for op in g._program if isinstance(op, Experts)]
    workspace = layers[0].workspace
    assert workspace is not None and layers[1].workspace is workspace
    assert g.num_bytes - before == workspace.num_bytes
    # 6 tokens of 3 experts each, 64 wide inside, of 6: the largest of each
    workspace.expect(6 * 3, 6, D, 64, False)
    with pytest.raises(ValueError, match="too small"):
        workspace.expect(6 * 3 + 1, 6, D, 64, False)
