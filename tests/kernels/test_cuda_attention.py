"""The ops of attention in a GPU program, each alone, against the reference graph: see ``lone_ops``."""

import pytest

pytest.importorskip("triton", reason="the GPU engine needs triton")

from functools import partial
from typing import Any

import numpy as np
from lone_ops import PAGE, PAGES, STEPS, Given, Record, check, kinds_of

from ftd.kernels import cuda_attention

HEADS, GROUPS, CHANNELS = 4, 2, 64


def buffers(given: Given) -> tuple[Any, Any, Any, Any]:
    """Return q, k, v, which are columns of one product on a card, and what the heads mix."""
    widths = HEADS * CHANNELS, GROUPS * CHANNELS, GROUPS * CHANNELS, HEADS * CHANNELS
    q, k, v, out = (given.graph.buffer(width) for width in widths)
    return q, k, v, out


def pages(given: Given) -> tuple[Any, Any]:
    return given.keep(PAGES, GROUPS, CHANNELS, PAGE), given.keep(PAGES, GROUPS, PAGE, CHANNELS)


def store(given: Given) -> list[Any]:
    _, k, v, _ = buffers(given)
    given.graph.kv_store(k, v, *pages(given))
    return []


def attention(given: Given, window: int = 0, sinks: bool = False) -> list[Any]:
    q, _, _, out = buffers(given)
    weight = given.vector(HEADS) if sinks else None
    given.graph.attention(out, q, *pages(given), HEADS, 0.1, window=window, sinks=weight)
    return [out]


def local_attention(given: Given) -> list[Any]:
    return attention(given, window=7, sinks=True)


def own_tokens(given: Given, normed: bool, frequencies: int, out_is_read: bool) -> list[Any]:
    """What a layer does to its tokens, then attention."""
    g, (q, k, v, out) = given.graph, buffers(given)
    cache = pages(given)
    inv_freq = np.linspace(1, 0.01, frequencies, dtype=np.float32)
    for x, heads in ((q, HEADS), (k, GROUPS)):
        if normed:
            g.head_rms_norm(x, heads, given.vector(CHANNELS), 1e-5)
        g.rope(x, heads, CHANNELS, inv_freq, 1.25)
    g.kv_store(k, v, *cache)
    g.attention(out, q, *cache, HEADS, 0.1)
    return [out, q] if out_is_read else [out]


# Heads that rotate in part are rotated before attention, which leaves q rotated
CASES: dict[str, tuple[Record, list[str]]] = {
    "store": (store, ["KvStore"]),
    "attention": (attention, ["Attention"]),
    "local attention": (local_attention, ["Attention"]),
    "in place": (
        partial(own_tokens, normed=True, frequencies=20, out_is_read=True),
        ["QkvPost", "Attention"],
    ),
    "in place, no norm": (
        partial(own_tokens, normed=False, frequencies=20, out_is_read=True),
        ["QkvPost", "Attention"],
    ),
    "at once": (partial(own_tokens, normed=True, frequencies=32, out_is_read=False), ["TokenAttention"]),
    "at once, no norm": (
        partial(own_tokens, normed=False, frequencies=32, out_is_read=False),
        ["TokenAttention"],
    ),
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("case", CASES)
def test_an_op_does_what_it_says_and_nothing_else(case: str, step: str, device: str) -> None:
    check(*CASES[case], step, device)


def test_every_op_stands_here() -> None:
    assert {kind for _, kinds in CASES.values() for kind in kinds} == kinds_of(cuda_attention)
