"""Eight sequences in one decode step are eight of one, and captured graphs are their kernels, on a card.

Without a card one family runs in Triton's interpreter, where nothing is captured.
"""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("triton", reason="the GPU engine needs triton")

from ftd.engine import devices
from ftd.engine.model import Model
from tests.engine import hybrid, tiny
from tests.engine.test_gpu_model import assert_near, device
from tests.engine.test_hybrid import IDS, build, run

PROMPTS = [IDS[9 * row : 9 * row + 3 + 5 * row] for row in range(8)]
# One of each kind of layer: full and sliding attention, sinks, experts, latents, an indexer, recurrent states
FAMILIES = ("llama", "gemma3_text", "gpt_oss", "qwen3_moe", "deepseek_v3", "deepseek_v32", "qwen3_next")
QUICK = ("llama", "f32")
# The interpreter takes ten seconds for a sequence
ROWS = range(8 if devices.missing_for_cuda() is None else 2)


def cases() -> list[Any]:
    """Every family and precision; one of them also without a card."""
    return [
        pytest.param(
            family, precision, marks=pytest.mark.slow if (family, precision) == QUICK else pytest.mark.gpu
        )
        for family in FAMILIES
        for precision in ("f32", "fast")
    ]


def decode(model: Model, rows: range) -> NDArray[np.float32]:
    """Run the prompts of ``rows`` but for their last ids, then these in one step; return its logits."""
    run(model, [(row, PROMPTS[row][:-1], 0) for row in rows])
    return np.concatenate(run(model, [(row, PROMPTS[row][-1:], len(PROMPTS[row]) - 1) for row in rows]))


@pytest.mark.parametrize(("family", "precision"), cases())
def test_eight_together_are_eight_alone(family: str, precision: str) -> None:
    # All experts are chosen: bf16 may choose the other of two all but equal ones, and the state remembers
    oracle = hybrid.make(family, num_experts_per_tok=8) if family in hybrid.CASES else tiny.make(family)
    place = device()
    model = build(oracle, place.make_graph, None, precision, place.make_pages)
    together = decode(model, ROWS)
    alone = np.concatenate([decode(model, range(row, row + 1)) for row in ROWS])
    assert_near(oracle, together, alone, precision)
    graph: Any = model.graph
    assert (len(graph._runner._graphs) > 0) == (place.name == "cuda")
    graph._runner._graphs.clear()
    # The same kernels on the same rows
    np.testing.assert_array_equal(decode(model, ROWS), together)


# (row, new ids, tokens before) of each sequence: prompts, then one goes on beside decode and a new one
SHORT_STEPS = [
    [(0, IDS[:21], 0), (1, IDS[30:39], 0)],
    [(0, IDS[21:22], 21), (1, IDS[39:56], 9), (2, IDS[70:73], 0)],
]


@pytest.mark.parametrize(("family", "precision"), cases())
def test_short_prompts_in_padded_and_captured_steps(family: str, precision: str) -> None:
    """Padding changes no more than other kernels for other sizes do; capturing changes nothing."""
    oracle = hybrid.make(family, num_experts_per_tok=8) if family in hybrid.CASES else tiny.make(family)
    place = device()
    model = build(oracle, place.make_graph, None, precision, place.make_pages)
    graph: Any = model.graph
    runner = graph._runner

    def texts() -> NDArray[np.float32]:
        return np.concatenate([row for parts in SHORT_STEPS for row in run(model, parts, last_only=True)])

    runner.pad()
    padded = texts()
    if runner._graphs:
        runner._graphs.clear()
        np.testing.assert_array_equal(texts(), padded)
    runner._buckets.clear()
    alone = texts()
    assert_near(oracle, padded, alone, precision)
    expected = [oracle.logits(IDS[:21]), oracle.logits(IDS[30:39])]
    assert_near(oracle, alone[:2], np.concatenate([each[-1:] for each in expected]), precision)
