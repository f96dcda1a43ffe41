"""Layers with a gated delta net alone, against their formulas in NumPy's float64 over whole texts.

Families are compared with transformers as wholes; here nothing stands between a fault and its name.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ftd.engine.model import Model
from ftd.engine.models import families
from ftd.engine.models.blocks import Blocks, Outputs
from ftd.engine.models.delta_net import DeltaNet
from ftd.errors import InvalidFtw
from ftd.kernels._graph_cy import CpuGraph
from ftd.kernels._pool import Pool
from ftd.kernels.dequantize_ref import dequantize
from ftd.kernels.reference_graph import ReferenceGraph
from tests.engine import tiny
from tests.engine.test_hybrid import IDS, build, in_steps, run

Array = NDArray[np.float64]
Tensors = dict[str, Array]
D, V, HK, HV, CK, CV, TAPS, EPS = 64, 160, 2, 4, 12, 20, 4, 1e-5
KEYS, VALUES, LAYERS = HK * CK, HV * CV, 2
RATES = ("in_proj_a.weight", "in_proj_b.weight")
TEXT = IDS[:45]
HYPER: dict[str, Any] = {
    "hidden_size": D,
    "intermediate_size": 64,
    "num_hidden_layers": LAYERS + 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": V,
    "max_position_embeddings": 288,
    "rms_norm_eps": EPS,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "layer_types": ["linear_attention"] * LAYERS + ["full_attention"],
    "linear_num_key_heads": HK,
    "linear_num_value_heads": HV,
    "linear_key_head_dim": CK,
    "linear_value_head_dim": CV,
    "linear_conv_kernel_dim": TAPS,
}


def tensors() -> Tensors:
    """Return random weights of two layers, and of what stands around them."""
    random = np.random.default_rng(3)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (V, D),
        "model.norm.weight": (D,),
        "lm_head.weight": (V, D),
    }
    for layer in range(LAYERS):
        parts = {
            "in_proj_qkv.weight": (2 * KEYS + VALUES, D),
            "in_proj_z.weight": (VALUES, D),
            "in_proj_b.weight": (HV, D),
            "in_proj_a.weight": (HV, D),
            "conv1d.weight": (2 * KEYS + VALUES, TAPS),
            "A": (HV,),
            "dt_bias": (HV,),
            "norm.weight": (CV,),
            "out_proj.weight": (D, VALUES),
        }
        shapes[f"model.layers.{layer}.input_layernorm.weight"] = (D,)
        shapes |= {f"model.layers.{layer}.linear_attn.{name}": shape for name, shape in parts.items()}
    made = {name: random.normal(float("norm" in name), 0.3, shape) for name, shape in shapes.items()}
    made |= {name: -np.exp(values) for name, values in made.items() if name.endswith(".A")}
    made |= {
        name: dequantize(tiny.q8_0(values.astype(np.float32))).astype(np.float64)
        for name, values in made.items()
        if name.endswith(RATES)
    }
    return {name: values.astype(np.float32).astype(np.float64) for name, values in made.items()}


def rms(x: Array, weight: Array) -> Array:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + EPS) * weight


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def delta_net(x: Array, w: Tensors, layer: int, tiled: bool) -> Array:
    """Return what the layer adds to ``x`` [T, D], by the recurrence of the paper, head by head."""
    prefix = f"model.layers.{layer}."
    part = {name.removeprefix(f"{prefix}linear_attn."): each for name, each in w.items()}
    normed = rms(x, w[f"{prefix}input_layernorm.weight"])
    qkv, z, b, a = (normed @ part[f"in_proj_{name}.weight"].T for name in ("qkv", "z", "b", "a"))
    before = np.concatenate([np.zeros((TAPS - 1, qkv.shape[1])), qkv])
    mixed = silu(sum(before[i : i + len(x)] * part["conv1d.weight"][:, i] for i in range(TAPS)))
    q, k, v = np.split(mixed, [KEYS, 2 * KEYS], axis=1)
    out = np.empty((len(x), VALUES))
    for head in range(HV):
        key_head = head % HK if tiled else head // (HV // HK)
        columns, values = slice(key_head * CK, (key_head + 1) * CK), slice(head * CV, (head + 1) * CV)
        state = np.zeros((CV, CK))
        for t in range(len(x)):
            query, key = (each[t, columns] / np.sqrt((each[t, columns] ** 2).sum() + 1e-6) for each in (q, k))
            alpha = np.exp(part["A"][head] * np.log1p(np.exp(a[t, head] + part["dt_bias"][head])))
            beta = 1 / (1 + np.exp(-b[t, head]))
            state = alpha * state @ (np.eye(CK) - beta * np.outer(key, key)) + beta * np.outer(
                v[t, values], key
            )
            out[t, values] = state @ query / np.sqrt(CK)
    heads = rms(out.reshape(-1, HV, CV), part["norm.weight"]).reshape(out.shape)
    return heads * silu(z) @ part["out_proj.weight"].T


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """Two worker threads."""
    with Pool(2) as pool:
        yield pool


@pytest.fixture(params=[ReferenceGraph, CpuGraph])
def make_graph(request: pytest.FixtureRequest) -> Any:
    """Every implementation."""
    return request.param


def model_of(
    w: Tensors,
    make_graph: Any,
    pool: Pool,
    monkeypatch: pytest.MonkeyPatch,
    precision: str = "f32",
    **more: Any,
) -> Model:
    """Build a model of recurrent layers alone; the products of rates (a, b) have q8_0 weights."""

    def record(blocks: Blocks) -> Outputs:
        blocks.embed()
        net = DeltaNet(blocks)
        for layer in range(LAYERS):
            net.layer(layer)
        return blocks.head()

    monkeypatch.setattr(families, "get", lambda architecture: record)
    matrices = {
        name: (tiny.q8_0 if name.endswith(RATES) else tiny.matrix)(values.astype(np.float32))
        for name, values in w.items()
    }
    return build(tiny.Tiny("qwen3_5", HYPER | more, matrices, None, ()), make_graph, pool, precision)


def logits_of(ids: list[int], w: Tensors, tiled: bool) -> Array:
    x = w["model.embed_tokens.weight"][ids]
    for layer in range(LAYERS):
        x = x + delta_net(x, w, layer, tiled)
    return rms(x, w["model.norm.weight"]) @ w["lm_head.weight"].T


def assert_near(found: Any, wanted: Array) -> None:
    assert np.abs(found - wanted).max() <= 1e-5 * np.ptp(wanted)


@pytest.mark.parametrize("precision", ["f32", "fast"])
@pytest.mark.parametrize("tiled", [False, True])
def test_layers_follow_the_recurrence_wherever_steps_end(
    tiled: bool, precision: str, make_graph: Any, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the fast path too: rates come from floats whatever their weights are, others have f32 weights."""
    w = tensors()
    model = model_of(w, make_graph, pool, monkeypatch, precision, linear_heads_tiled=tiled)
    wanted = logits_of(TEXT, w, tiled)
    assert_near(run(model, [(0, TEXT, 0)])[0], wanted)
    assert_near(in_steps(model, 1, TEXT, [17, 1, 1, 26]), wanted)


def test_sequences_of_a_step_keep_their_states_apart(
    make_graph: Any, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    w, other = tensors(), TEXT[::-1]
    model = model_of(w, make_graph, pool, monkeypatch)
    first = run(model, [(0, TEXT[:20], 0), (3, other[:1], 0)])
    second = run(model, [(3, other[1:], 1), (0, TEXT[20:], 20)])
    assert_near(np.concatenate([first[0], second[1]]), logits_of(TEXT, w, False))
    assert_near(np.concatenate([first[1], second[0]]), logits_of(other, w, False))


@pytest.mark.parametrize("name", ["A", "dt_bias", "norm.weight", "conv1d.weight", "in_proj_z.weight"])
def test_what_is_missing_is_named(name: str, pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    w = tensors()
    del w[f"model.layers.1.linear_attn.{name}"]
    with pytest.raises(InvalidFtw, match=rf"the model has no tensor model\.layers\.1\.linear_attn\.{name}"):
        model_of(w, CpuGraph, pool, monkeypatch)
