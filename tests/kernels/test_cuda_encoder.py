"""The ops of encoders in a GPU program, each alone, against the reference graph: see ``lone_ops``."""

import pytest

pytest.importorskip("triton", reason="the GPU engine needs triton")

from typing import Any

from lone_ops import COLUMNS, PAGE, PAGES, STEPS, Given, Record, check, kinds_of

from ftd.kernels import cuda_encoder

D, HEADS, CHANNELS = 32, 2, 16


def positions(given: Given) -> list[Any]:
    x = given.graph.buffer(D)
    given.graph.position_embedding(x, given.vector(PAGE * COLUMNS, D))
    return [x]


def layer_norm(given: Given) -> list[Any]:
    x, out = given.graph.buffer(D), given.graph.buffer(D)
    given.graph.layer_norm(out, x, given.vector(D), given.vector(D), 1e-6)
    return [out]


def gelu(given: Given) -> list[Any]:
    x, out = given.graph.buffer(D), given.graph.buffer(D)
    given.graph.gelu(out, x)
    return [out]


def whole_attention(given: Given) -> list[Any]:
    """Two layers: where sequences end is looked up once."""
    q, *outs = (given.graph.buffer(D) for _ in range(3))
    pages = given.keep(PAGES, HEADS, CHANNELS, PAGE), given.keep(PAGES, HEADS, PAGE, CHANNELS)
    for out in outs:
        given.graph.attention(out, q, *pages, HEADS, 0.3, causal=False)
    return outs


CASES: dict[Record, list[str]] = {
    positions: ["AddPositions"],
    layer_norm: ["LayerNorm"],
    gelu: ["Gelu"],
    whole_attention: ["LastPositions", "WholeAttention", "WholeAttention"],
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("which", CASES, ids=lambda which: which.__name__)
def test_an_op_does_what_it_says_and_nothing_else(which: Record, step: str, device: str) -> None:
    check(which, CASES[which], step, device)


def test_positions_are_added_to_a_sum_that_keeps_its_digits(device: str) -> None:
    """Beside bf16 activations too: in their type it would be off by a four hundredth."""
    check(positions, CASES[positions], "decode", device, precision="fast", tolerance=1e-6)


def test_every_op_stands_here() -> None:
    assert {kind for kinds in CASES.values() for kind in kinds} == kinds_of(cuda_encoder)
