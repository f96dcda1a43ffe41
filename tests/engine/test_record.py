"""Recorded routing against the router logits of transformers on the same tokens."""

from pathlib import Path

import numpy as np
import pytest

from ftd.engine import record, routing
from ftd.engine.messages import Load
from ftd.errors import InvalidOption
from tests.engine import tiny
from tests.engine.serving import write_ftw


def recorded(load: Load, ids: list[int], decode_tokens: int) -> routing.Trace:
    """Record on the model of ``load``."""
    paths = {digest: Path(path) for digest, path in load.blob_paths.items()}
    return record.record(
        Path(load.config_path), paths, ids, decode_tokens=decode_tokens, num_threads=1, precision="f32"
    )


def test_the_trace_holds_what_transformers_chooses(tmp_path: Path) -> None:
    import torch

    model = tiny.make("qwen3_moe")
    load = write_ftw(model, tmp_path)
    prompt = [3, 1, 4, 1, 5, 92, 6, 53]
    trace = recorded(load, prompt, 9)
    assert trace.tokens.tolist()[:8] == prompt and trace.num_tokens == 17
    with torch.no_grad():
        output = model.oracle(torch.tensor([trace.tokens.tolist()]), output_router_logits=True)
    theirs = [logits.topk(3, dim=-1).indices.numpy() for logits in output.router_logits]
    assert trace.routing.shape == (2, 17, 3)  # layer 1 of 3 has no experts
    np.testing.assert_array_equal(np.sort(trace.routing, axis=2), np.sort(np.stack(theirs), axis=2))
    again = recorded(load, trace.tokens.tolist(), 0)
    assert record.agreement(trace, again) == 1.0


def test_agreement_counts_experts_whatever_their_order() -> None:
    one = routing.Trace(np.array([[[0, 1], [2, 3]]]), np.array([0, 1]), 4)
    other = routing.Trace(np.array([[[1, 0], [2, 1]]]), np.array([0, 1]), 4)
    assert record.agreement(one, other) == 0.75
    with pytest.raises(InvalidOption, match="traces differ in shape"):
        record.agreement(one, one.head(1))


def test_a_model_without_experts_is_refused(tmp_path: Path) -> None:
    load = write_ftw(tiny.make("llama"), tmp_path)
    with pytest.raises(InvalidOption, match="model has no experts to route to: llama"):
        recorded(load, [1, 2], 2)
    with pytest.raises(InvalidOption, match="nothing to record"):
        recorded(load, [], 2)
