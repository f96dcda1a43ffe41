"""Fusion of recorded GPU programs: whatever is fused, what is still read is what the ops one by one give.

Programs are random: neighbours of all kinds, over few buffers, so that results are overwritten, read twice,
or read and written at once. The reference graph, which fuses nothing, says what they compute.
"""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="the GPU engine needs triton")

import torch
from banks import make_bank
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from ftd.kernels.cuda_fusion import fuse
from ftd.kernels.graph_triton import CudaGraph
from ftd.kernels.quant import QuantMatrix
from ftd.kernels.reference_graph import ReferenceGraph
from tests.kernels.test_graph_triton import LIMITS, STEP

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # NumPy's, in the interpreter
# Heads of 64 channels, two of q and two of k and v
WIDE, INNER, CHANNELS, HEADS = 64, 48, 64, 128
ROWS = ("x", "y", "z")
PAIR = ("gate", "up")
Op = tuple[str, tuple[Any, ...]]

rows, pair = st.sampled_from(ROWS), st.sampled_from(PAIR)
OPS: st.SearchStrategy[Op] = st.one_of(
    st.tuples(st.just("rms_norm"), st.tuples(rows, rows)),
    st.tuples(st.just("add"), st.tuples(rows, rows, st.sampled_from([1.0, 0.5]))),
    st.tuples(st.just("linear"), st.tuples(rows, rows).filter(lambda each: each[0] != each[1])),
    st.tuples(st.just("linear_add"), st.tuples(rows, rows).filter(lambda each: each[0] != each[1])),
    st.tuples(st.just("gated"), st.tuples(rows, st.sampled_from(["swiglu", "geglu"]), pair, st.booleans())),
    st.tuples(st.just("inner"), st.tuples(rows, rows, st.sampled_from(["swiglu", "geglu"]))),
    st.tuples(
        st.just("mixture"),
        st.tuples(
            rows,
            st.sampled_from([*ROWS, "s"]),
            st.sampled_from([*ROWS, "t"]),
            rows,
            st.sampled_from([1.0, 0.5]),
        ),
    ),
    st.tuples(
        st.just("heads"),
        st.tuples(
            rows, rows, st.sampled_from(["qk", "", "q"]), st.sampled_from(["qk", "kq", "k"]), st.booleans()
        ),
    ),
)


class Recorder:
    """Records the same program into any graph."""

    def __init__(self, graph: Any, device: str | None) -> None:
        self.graph, self.device = graph, device
        widths = (
            dict.fromkeys(ROWS, WIDE)
            | dict.fromkeys(PAIR, INNER)
            | dict.fromkeys("qkvm", HEADS)
            | dict.fromkeys("st", WIDE)
            | {"l": 4}
        )
        self.buffers = {name: graph.buffer(width) for name, width in widths.items()}
        self.weights: dict[Any, Any] = {}

    def matrix(self, n: int, k: int, seed: int) -> Any:
        """A weight, the same object each time: graphs keep one copy."""
        values = np.random.default_rng(seed).standard_normal((n, k)).astype(np.float32) / np.float32(k**0.5)
        return self.weights.setdefault((n, k, seed), QuantMatrix("f32", (n, k), (values,)))

    def vector(self, n: int, seed: int) -> Any:
        """A norm's weight."""
        values = np.random.default_rng(seed).uniform(0.5, 1.5, n).astype(np.float32)
        return self.weights.setdefault((n, seed), values)

    def record(self, ops: list[Op], wanted: list[str]) -> list[Any]:
        """Record ``ops`` between an embedding of each row buffer and what reads ``wanted``; finish."""
        g, b = self.graph, self.buffers
        for seed, name in enumerate(ROWS):
            g.embedding(b[name], self.matrix(8, WIDE, seed))
        for kind, arguments in ops:
            getattr(self, kind)(*arguments)
        outs = []
        for name in wanted:
            outs.append(g.logit_buffer(b[name].width))
            g.select_logit_rows(outs[-1], b[name])
        return outs

    def rms_norm(self, out: str, x: str) -> None:
        self.graph.rms_norm(self.buffers[out], self.buffers[x], self.vector(WIDE, 1), 1e-5)

    def add(self, out: str, x: str, scale: float) -> None:
        self.graph.add(self.buffers[out], self.buffers[x], scale)

    def linear(self, out: str, x: str) -> None:
        self.graph.linear(self.buffers[out], self.buffers[x], self.matrix(WIDE, WIDE, 11))

    def linear_add(self, out: str, x: str) -> None:
        self.graph.linear_add(self.buffers[out], self.buffers[x], self.matrix(WIDE, WIDE, 12))

    def gated(self, x: str, activation: str, out: str, back: bool) -> None:
        """Gate and up of ``x``, their activation, and perhaps the product that takes it back to ``x``."""
        g, b = self.graph, self.buffers
        g.linears([(b[name], self.matrix(INNER, WIDE, 13 + i), None) for i, name in enumerate(PAIR)], b[x])
        getattr(g, activation)(b[out], b["gate"], b["up"])
        if back:
            g.linear_add(b[x], b[out], self.matrix(WIDE, INNER, 15))

    def inner(self, out: str, x: str, activation: str) -> None:
        """Two products of ``x`` into row buffers, and their activation into one that may be ``x``."""
        g, b = self.graph, self.buffers
        g.linears([(b[name], self.matrix(WIDE, WIDE, 16 + i), None) for i, name in enumerate("st")], b[x])
        getattr(g, activation)(b[out], b["s"], b["t"])

    def mixture(self, x: str, normed: str, mixed: str, out: str, scale: float) -> None:
        """A norm of ``x``, a router, experts of the norm, their sum into ``out``: any may be one buffer."""
        g, b = self.graph, self.buffers
        g.rms_norm(b[normed], b[x], self.vector(WIDE, 3), 1e-5)
        g.linear(b["l"], b[normed], self.matrix(4, WIDE, 23))
        shapes = {"gate_up": (2 * INNER, WIDE), "down": (WIDE, INNER)}
        experts = [{role: self.matrix(*shapes[role], 30 + e) for role in shapes} for e in range(4)]
        bank = self.weights.setdefault("bank", make_bank(0, experts))
        g.expert_ffn(b[mixed], b[normed], g.route_topk(b["l"], 2), bank)
        g.add(b[out], b[mixed], scale)

    def heads(self, x: str, out: str, normed: str, order: str, is_read: bool) -> None:
        """What a layer does to q, k and v before attention, with norms of some heads; then attention."""
        g, b = self.graph, self.buffers
        g.linears([(b[name], self.matrix(HEADS, WIDE, 18 + i), None) for i, name in enumerate("qkv")], b[x])
        pages = [np.zeros((4, 2, *rest), np.float32) for rest in ((CHANNELS, 16), (16, CHANNELS))]
        if self.device is not None:
            pages = [torch.from_numpy(each).to(self.device) for each in pages]
        for name in normed:
            g.head_rms_norm(b[name], 2, self.vector(CHANNELS, 2), 1e-5)
        frequencies = self.weights.setdefault("rope", (1e4 ** -np.linspace(0, 1, 32)).astype(np.float32))
        for name in order:
            g.rope(b[name], 2, CHANNELS, frequencies)
        g.kv_store(b["k"], b["v"], *pages)
        g.attention(b["m"], b["q"], *pages, 2, 0.1)
        g.linear_add(b[out], b["m"], self.matrix(WIDE, HEADS, 21))
        if is_read:
            g.linear_add(b[out], b["k"], self.matrix(WIDE, HEADS, 22))


def both(ops: list[Op], wanted: list[str]) -> tuple[list[Any], list[Any]]:
    """Return what the reference and the fused program leave in ``wanted``."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    results = []
    for graph, place in (
        (ReferenceGraph(None, **LIMITS, precision="f32"), None),
        (CudaGraph(None, **LIMITS, precision="f32", device=device), device),
    ):
        outs = Recorder(graph, place).record(ops, wanted)
        graph.finish()
        graph.run(*STEP)
        results.append([graph.view(each).copy() for each in outs])
    return results[0], results[1]


def compare(ops: list[Op], wanted: list[str]) -> None:
    """Fail unless both leave the same, but for roundings."""
    for theirs, ours in zip(*both(ops, wanted), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-4 * max(1.0, np.abs(theirs).max()))


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(OPS, min_size=1, max_size=6), st.lists(rows, min_size=1, max_size=3, unique=True))
def test_random_programs_compute_what_their_ops_do(ops: list[Op], wanted: list[str]) -> None:
    compare(ops, wanted)


@pytest.mark.parametrize(
    ("ops", "wanted"),
    [
        pytest.param([("inner", ("x", "x", "swiglu"))], ["x"], id="an activation into what was multiplied"),
        pytest.param([("rms_norm", ("y", "x")), ("linear", ("z", "y"))], ["y", "z"], id="a norm read twice"),
        pytest.param([("rms_norm", ("y", "x")), ("linear_add", ("x", "y"))], ["x"], id="a norm of the sum"),
        pytest.param([("add", ("x", "x", 0.5)), ("rms_norm", ("y", "x"))], ["x", "y"], id="x added to x"),
        pytest.param([("add", ("x", "y", 0.5)), ("rms_norm", ("y", "x"))], ["x", "y"], id="norm over addend"),
        pytest.param([("heads", ("x", "y", "qk", "kq", True))], ["y"], id="rotated keys that are read"),
        pytest.param(
            [("linear", ("z", "x")), ("rms_norm", ("x", "z")), ("linear", ("y", "x"))],
            ["y"],
            id="a norm over what was multiplied",
        ),
        pytest.param(
            [
                *(("linear", ("y", "x")), ("rms_norm", ("z", "y"))),
                *(("linear", ("x", "z")), ("rms_norm", ("y", "x"))),
                *(("linear", ("z", "y")), ("rms_norm", ("x", "z")), ("linear_add", ("y", "x"))),
            ],
            ["y"],
            id="norms between all products",
        ),
        pytest.param([("gated", ("x", "geglu", "up", False))], ["x", "up"], id="into up"),
    ],
)
def test_neighbours_that_share_buffers(ops: list[Op], wanted: list[str]) -> None:
    compare(ops, wanted)


def names(ops: list[Op], wanted: list[str]) -> list[str]:
    """Return the kinds of what a fused program launches between the embeddings and what is wanted."""
    graph = CudaGraph(None, **LIMITS, precision="f32", device="cpu")
    Recorder(graph, "cpu").record(ops, wanted)
    return [type(op).__name__ for op in fuse(graph._program)][len(ROWS) : -len(wanted)]


def test_fuses_what_may_be() -> None:
    assert names([("gated", ("x", "swiglu", "gate", True))], ["x"]) == ["GatedProduct", "Product"]
    assert names([("gated", ("x", "swiglu", "gate", True))], ["up"]) == ["Product", "Gate", "Product"]
    for normed in ("qk", ""):
        fused = names([("heads", ("x", "y", normed, "qk", False))], ["y"])
        assert fused == ["Product", "TokenAttention", "Product"]
    fused = names([("heads", ("x", "y", "q", "qk", False))], ["y"])
    assert fused == ["Product", "RmsNorm", "TokenAttention", "Product"]
    # Rotated keys that somebody reads must lie in their buffer
    fused = names([("heads", ("x", "y", "", "qk", True))], ["y"])
    assert fused == ["Product", "Rope", "Rope", "KvStore", "Attention", "Product", "Product"]
    assert names([("mixture", ("x", "s", "t", "x", 1.0))], ["x"]) == ["Router", "Experts"]
    assert names([("mixture", ("x", "s", "t", "x", 1.0))], ["t"]) == ["Router", "Experts", "Add"]
    assert names([("mixture", ("x", "s", "t", "s", 1.0))], ["s"]) == ["Router", "Experts", "Add"]
    assert names([("mixture", ("x", "x", "t", "y", 1.0))], ["y"]) == [
        "RmsNorm",
        "Product",
        "Route",
        "Experts",
    ]
    # Of two norms in a row between products the second stays: one place keeps sums of squares
    chain = [op for a, b, c in ("xyz", "zxy", "yzx") for op in (("linear", (b, a)), ("rms_norm", (c, b)))]
    fused = names([*chain, ("linear", ("y", "x"))], ["y"])
    assert fused == ["Product", "Product", "RmsNorm", "Product", "Product"]
    assert names([("add", ("x", "y", 1.0)), ("rms_norm", ("y", "x"))], ["y"]) == ["AddNorm"]
    assert names([("rms_norm", ("y", "x")), ("linear", ("z", "y"))], ["z"]) == ["Product"]
    assert names([("rms_norm", ("y", "x")), ("linear", ("z", "y"))], ["y"]) == ["RmsNorm", "Product"]
