"""The ops of recurrent layers in a GPU program, each alone, against the reference graph: see ``lone_ops``."""

import pytest

pytest.importorskip("triton", reason="the GPU engine needs triton")

from typing import Any

import numpy as np
from lone_ops import LIMITS, SLOTS, STEPS, Given, Record, check, kinds_of

from ftd.kernels import cuda_states
from ftd.kernels.graph_triton import CudaGraph

KEY_HEADS, HEADS, KEY, VALUE, TAPS = 2, 4, 8, 8, 4
WIDTH = 2 * KEY_HEADS * KEY + HEADS * VALUE


def sigmoid_gate(given: Given) -> list[Any]:
    out, x, gate = (given.graph.buffer(WIDTH) for _ in range(3))
    given.graph.sigmoid_gate(out, x, gate)
    return [out]


def convolution(given: Given) -> list[Any]:
    out, x = given.graph.buffer(WIDTH), given.graph.buffer(WIDTH)
    given.graph.causal_conv(out, x, given.vector(WIDTH, TAPS), given.keep(SLOTS, TAPS - 1, WIDTH))
    return [out]


def delta_rule(given: Given, tiled: bool = False) -> list[Any]:
    g, state = given.graph, given.keep(SLOTS, HEADS, KEY, VALUE)
    out, qkv, a, b = (g.buffer(width) for width in (HEADS * VALUE, WIDTH, HEADS, HEADS))
    g.gated_delta(out, qkv, a, b, -given.vector(HEADS), given.vector(HEADS), state, KEY_HEADS, tiled)
    return [out]


def tiled_delta_rule(given: Given) -> list[Any]:
    return delta_rule(given, tiled=True)


CASES: dict[Record, list[str]] = {
    sigmoid_gate: ["SigmoidGate"],
    convolution: ["Convolution"],
    delta_rule: ["DeltaRule"],
    tiled_delta_rule: ["DeltaRule"],
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("which", CASES, ids=lambda which: which.__name__)
def test_an_op_does_what_it_says_and_nothing_else(which: Record, step: str, device: str) -> None:
    check(which, CASES[which], step, device)


@pytest.mark.parametrize("which", CASES, ids=lambda which: which.__name__)
def test_a_sequence_that_is_padding_leaves_its_slot_alone(which: Record, device: str) -> None:
    """It is slot 0, which the step's two sequences do not have."""
    check(which, CASES[which], "beside decode", device, padded=True)


def test_rates_keep_their_digits(device: str) -> None:
    """Beside bf16 activations too: a state would be off by a four hundredth, and stay so."""
    check(delta_rule, CASES[delta_rule], "decode", device, precision="fast", tolerance=1e-2, digits=(2, 3))


def test_every_op_stands_here() -> None:
    assert {kind for kinds in CASES.values() for kind in kinds} == kinds_of(cuda_states)


def test_layers_of_one_shape_share_the_memory_of_chunks(device: str) -> None:
    g = CudaGraph(None, **LIMITS, precision="f32", device=device)
    before, taken = g.num_bytes, []
    for heads in (HEADS, HEADS, 2 * HEADS):
        given = Given(g, device)
        buffers = [
            g.buffer(width) for width in (heads * VALUE, 2 * KEY_HEADS * KEY + heads * VALUE, heads, heads)
        ]
        rates = -given.vector(heads), given.vector(heads)
        g.gated_delta(*buffers, *rates, given.keep(SLOTS, heads, KEY, VALUE), KEY_HEADS)
        taken.append(g.num_bytes - before)
    assert taken[0] == taken[1] < taken[2]


def test_misfits_are_refused_when_they_are_recorded(device: str) -> None:
    g = CudaGraph(None, **LIMITS, precision="f32", device=device)
    given = Given(g, device)
    x, out, rate = g.buffer(WIDTH), g.buffer(HEADS * VALUE), g.buffer(HEADS)
    with pytest.raises(ValueError, match="the convolution of a buffer cannot go to the buffer itself"):
        g.causal_conv(x, x, given.vector(WIDTH, TAPS), given.keep(SLOTS, TAPS - 1, WIDTH))
    with pytest.raises(ValueError, match="weight must be"):
        g.causal_conv(g.buffer(WIDTH), x, given.vector(WIDTH - 1, TAPS), given.keep(SLOTS, TAPS - 1, WIDTH))
    state, rates = given.keep(SLOTS, HEADS, KEY, VALUE), np.zeros(HEADS, np.float32)
    with pytest.raises(ValueError, match="a, b and out must be 4, 4 and 32 wide"):
        g.gated_delta(out, x, rate, x, rates, rates, state, KEY_HEADS)
    assert not g._program
