"""The ops that every GPU program is made of, each alone, against the reference graph: see ``lone_ops``."""

import pytest

pytest.importorskip("triton", reason="the GPU engine needs triton")

from typing import Any

import numpy as np
from lone_ops import IDS, STEPS, Given, Record, check, kinds_of

from ftd.kernels import cuda_program

D, INNER = 32, 48


def embed(given: Given) -> list[Any]:
    x = given.graph.buffer(D)
    given.graph.embedding(x, given.matrix(IDS, D), 2.5)
    return [x]


def rms_norm(given: Given) -> list[Any]:
    x, out = given.graph.buffer(D), given.graph.buffer(D)
    given.graph.rms_norm(out, x, given.vector(D), 1e-5)
    return [out]


def head_norm(given: Given) -> list[Any]:
    x = given.graph.buffer(D)
    given.graph.head_rms_norm(x, 4, given.vector(D // 4), 1e-5)
    return [x]


def add(given: Given) -> list[Any]:
    x, out = given.graph.buffer(D), given.graph.buffer(D)
    given.graph.add(out, x, 0.25)
    return [out]


def add_norm(given: Given) -> list[Any]:
    x, y, out = (given.graph.buffer(D) for _ in range(3))
    given.graph.add(x, y, 0.5)
    given.graph.rms_norm(out, x, given.vector(D), 1e-5)
    return [x, out]


def product(given: Given) -> list[Any]:
    x, out = given.graph.buffer(D), given.graph.buffer(INNER)
    given.graph.linear(out, x, given.matrix(INNER, D), given.vector(INNER))
    return [out]


def product_added(given: Given) -> list[Any]:
    x, out = given.graph.buffer(D), given.graph.buffer(INNER)
    given.graph.linear_add(out, x, given.matrix(INNER, D))
    return [out]


def stacked(given: Given) -> list[Any]:
    """Products of one x, of which only the second has a bias."""
    x, outs = given.graph.buffer(D), [given.graph.buffer(width) for width in (INNER, 5)]
    biases = None, given.vector(5)
    products = [(out, given.matrix(out.width, D), bias) for out, bias in zip(outs, biases, strict=True)]
    given.graph.linears(products, x)
    return outs


def normed_product(given: Given) -> list[Any]:
    x, normed, out = given.graph.buffer(D), given.graph.buffer(D), given.graph.buffer(INNER)
    given.graph.rms_norm(normed, x, given.vector(D), 1e-5)
    given.graph.linear(out, normed, given.matrix(INNER, D))
    return [out]


def products_around_a_norm(given: Given) -> list[Any]:
    x, y, normed, out = *(given.graph.buffer(D) for _ in range(3)), given.graph.buffer(INNER)
    given.graph.linear_add(x, y, given.matrix(D, D))
    given.graph.rms_norm(normed, x, given.vector(D), 1e-5)
    given.graph.linear(out, normed, given.matrix(INNER, D))
    return [x, out]


def products_around_a_norm_alone(given: Given) -> list[Any]:
    """And nobody else reads what is normalised."""
    return products_around_a_norm(given)[1:]


def gated_product(given: Given, activation: str = "swiglu") -> list[Any]:
    x, gate, up, out = given.graph.buffer(D), *(given.graph.buffer(INNER) for _ in range(3))
    given.graph.linears([(each, given.matrix(INNER, D), None) for each in (gate, up)], x)
    getattr(given.graph, activation)(out, gate, up)
    return [out]


def normed_gated_product(given: Given) -> list[Any]:
    x, normed, gate, up = (
        *(given.graph.buffer(D) for _ in range(2)),
        *(given.graph.buffer(INNER) for _ in "gu"),
    )
    given.graph.rms_norm(normed, x, given.vector(D), 1e-5)
    given.graph.linears([(each, given.matrix(INNER, D), None) for each in (gate, up)], normed)
    given.graph.swiglu(gate, gate, up)
    return [gate]


def gated_product_behind_a_norm(given: Given) -> list[Any]:
    """And behind a product that adds; nobody else reads the sums."""
    x, y, normed = (given.graph.buffer(D) for _ in range(3))
    gate, up = (given.graph.buffer(INNER) for _ in range(2))
    given.graph.linear_add(x, y, given.matrix(D, D))
    given.graph.rms_norm(normed, x, given.vector(D), 1e-5)
    given.graph.linears([(each, given.matrix(INNER, D), None) for each in (gate, up)], normed)
    given.graph.swiglu(gate, gate, up)
    return [gate]


def gelu_gated_product(given: Given) -> list[Any]:
    return gated_product(given, "geglu")


def gate(given: Given, activation: str = "swiglu") -> list[Any]:
    buffers = [given.graph.buffer(INNER) for _ in range(3)]
    getattr(given.graph, activation)(*buffers)
    return buffers[:1]


def gelu_gate(given: Given) -> list[Any]:
    return gate(given, "geglu")


def rope(given: Given) -> list[Any]:
    x = given.graph.buffer(D)
    given.graph.rope(x, 2, D // 2, np.linspace(1, 0.1, 6, dtype=np.float32), 1.5)
    return [x]


def select_rows(given: Given) -> list[Any]:
    x, out = given.graph.buffer(D), given.graph.logit_buffer(D)
    given.graph.select_logit_rows(out, x)
    return [out]


CASES: dict[Record, list[str]] = {
    embed: ["Embed"],
    rms_norm: ["RmsNorm"],
    head_norm: ["RmsNorm"],
    add: ["Add"],
    add_norm: ["AddNorm"],
    product: ["Product"],
    product_added: ["Product"],
    stacked: ["Product"],
    normed_product: ["Product"],
    products_around_a_norm: ["Product", "Product"],
    products_around_a_norm_alone: ["Product", "Product"],
    gated_product: ["GatedProduct"],
    gelu_gated_product: ["GatedProduct"],
    normed_gated_product: ["GatedProduct"],
    gated_product_behind_a_norm: ["Product", "GatedProduct"],
    gate: ["Gate"],
    gelu_gate: ["Gate"],
    rope: ["Rope"],
    select_rows: ["SelectRows"],
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("which", CASES, ids=lambda which: which.__name__)
def test_an_op_does_what_it_says_and_nothing_else(which: Record, step: str, device: str) -> None:
    check(which, CASES[which], step, device)


@pytest.mark.parametrize("which", [embed, add], ids=lambda which: which.__name__)
def test_sums_that_grow_lose_nothing_of_what_is_added(which: Record, device: str) -> None:
    """Beside bf16 activations too: in their type a sum would be off by a four hundredth."""
    check(which, CASES[which], "decode", device, precision="fast", tolerance=1e-6)


def test_every_op_stands_here() -> None:
    assert {kind for kinds in CASES.values() for kind in kinds} == kinds_of(cuda_program)
