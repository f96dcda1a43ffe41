"""ExpertOps: a mixture recorded in the reference's programs against torch in float64, and what is counted."""

from typing import Any

import numpy as np
import pytest
import torch
from banks import random_bank

from ftd.kernels.dequantize_ref import dequantize
from ftd.kernels.quant import ExpertBank
from ftd.kernels.reference_experts import ExpertOps
from ftd.kernels.reference_recorder import Buffer
from ftd.kernels.step import Step
from tests.kernels.test_reference_recorder import LIMITS, arrays

D, F, E, K = 16, 12, 5, 2


def graph_of(values: dict[str, Any]) -> tuple[ExpertOps, dict[str, Buffer]]:
    """Return a graph whose first op writes ``values`` [max_tokens, width] to buffers of these names."""
    graph = ExpertOps(None, **LIMITS, precision="f32")
    buffers = {name: graph.buffer(each.shape[1]) for name, each in values.items()}

    def fill(step: Step) -> None:
        for name, each in values.items():
            graph._write(buffers[name], each[step.positions])

    graph._record(fill)
    return graph, buffers


def mixture(x: Any, logits: Any, bank: ExpertBank, scale: float) -> torch.Tensor:
    """Return what every expert makes of every token, weighed by softmax over the best; in float64."""
    weights = {role: [dequantize(each.expert(e)) for e in range(E)] for role, each in bank.matrices.items()}
    stacked = {role: torch.from_numpy(np.stack(each)).double() for role, each in weights.items()}
    rows, scores = torch.from_numpy(x).double(), torch.from_numpy(logits).double()
    gate, up = torch.einsum("td,efd->etf", rows, stacked["gate_up"]).chunk(2, dim=2)
    each = torch.einsum("etf,edf->etd", torch.nn.functional.silu(gate) * up, stacked["down"])
    top = scores.topk(K, dim=1)
    shares = torch.zeros_like(scores).scatter(1, top.indices, top.values.softmax(dim=1) * scale)
    return torch.einsum("etd,te->td", each, shares)


def test_a_recorded_mixture_is_the_sum_over_all_experts(rng: np.random.Generator) -> None:
    x, logits = rng.standard_normal((5, D), np.float32), rng.standard_normal((5, E), np.float32)
    bank = random_bank(rng, E, D, F)
    graph, b = graph_of({"x": x, "logits": logits})
    out = graph.buffer(D)
    routing = graph.route_topk(b["logits"], K, scale=1.5)
    graph.expert_ffn(out, b["x"], routing, bank)
    graph.finish()
    wanted, uses = mixture(x, logits, bank, 1.5).numpy(), np.zeros(E + 1, np.int64)
    for tokens in (5, 1, 3):
        graph.run(**arrays(tokens, 0))
        np.testing.assert_allclose(graph.view(out), wanted[:tokens], rtol=1e-5, atol=1e-5)
        ids, weights = graph.routed(routing)
        np.testing.assert_array_equal(np.sort(ids, axis=1), np.sort(np.argsort(-logits[:tokens])[:, :K]))
        np.testing.assert_allclose(weights.sum(axis=1), 1.5, rtol=1e-6)
        uses[:E] += np.bincount(ids.ravel(), minlength=E)
        uses[E] += len(np.unique(ids))
        assert graph.expert_uses(routing).tolist() == uses.tolist()


def test_layers_keep_choices_of_their_own(rng: np.random.Generator) -> None:
    first, second = (rng.standard_normal((5, E), np.float32) for _ in range(2))
    graph, b = graph_of({"first": first, "second": second})
    routings = [graph.route_topk(b[name], 1) for name in ("first", "second")]
    graph.finish()
    graph.run(**arrays(4, 0))
    for routing, logits in zip(routings, (first, second), strict=True):
        assert graph.routed(routing)[0][:, 0].tolist() == logits[:4].argmax(axis=1).tolist()


def test_what_does_not_fit_is_refused_when_it_is_recorded(rng: np.random.Generator) -> None:
    graph, b = graph_of({"x": np.zeros((5, D), np.float32), "logits": np.zeros((5, E), np.float32)})
    bank = random_bank(rng, E, D, F)
    routing = graph.route_topk(b["logits"], K)
    with pytest.raises(ValueError, match="num_chosen must lie in 1 to 5, got 6"):
        graph.route_topk(b["logits"], 6)
    with pytest.raises(ValueError, match=f"the router has {E} experts, the bank 4"):
        graph.expert_ffn(b["x"], b["x"], routing, random_bank(rng, 4, D, F))
    with pytest.raises(ValueError, match=rf"buffer must be \[tokens, {D}\], got \[tokens, {E}\]"):
        graph.expert_ffn(b["logits"], b["x"], routing, bank)
    with pytest.raises(ValueError, match="silu clamped, got relu"):
        graph.expert_ffn(b["x"], b["x"], routing, bank, "relu")
    other, _ = graph_of({"x": np.zeros((5, D), np.float32)})
    with pytest.raises(ValueError, match="the routing belongs to another graph"):
        other.expert_ffn(other.buffer(D), other.buffer(D), routing, bank)
