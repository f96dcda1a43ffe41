"""Each block, with each of its options alone, against the formulas in NumPy's float64.

Families are compared with transformers as wholes; here one option stands alone, so that a fault has a name.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from banks import make_bank
from numpy.typing import NDArray

from ftd.engine.models import families
from ftd.engine.models.blocks import Blocks, Outputs
from ftd.errors import InvalidFtw
from ftd.kernels.quant import ExpertBank
from tests.engine import tiny
from tests.engine.test_model import IMPLEMENTATIONS, PROMPT, build, graph_class, run

Array = NDArray[np.float64]
Tensors = dict[str, Array]
D, H, G, C, F, E, S, V = 64, 4, 2, 16, 96, 5, 48, 160
IDS = PROMPT[:37]
HYPER: dict[str, Any] = {
    "hidden_size": D,
    "intermediate_size": F,
    "num_hidden_layers": 1,
    "num_attention_heads": H,
    "num_key_value_heads": G,
    "head_dim": C,
    "vocab_size": V,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
EXPERTS = {"num_experts": E, "num_experts_per_tok": 2, "moe_intermediate_size": F, "norm_topk_prob": True}
LAYER = "model.layers.0."
ATTENTION, MLP = f"{LAYER}self_attn.", f"{LAYER}mlp."


def tensors(**shapes: tuple[int, ...]) -> Tensors:
    """Return random tensors: the model's outer ones, and those of ``shapes`` by their ending in the layer."""
    random = np.random.default_rng(3)
    names = {"model.embed_tokens.weight": (V, D), "model.norm.weight": (D,), "lm_head.weight": (V, D)}
    names |= {f"{LAYER}{name.replace('__', '.')}": shape for name, shape in shapes.items()}
    return {
        name: (random.normal(float(name.endswith("norm.weight")), 0.2, shape))
        .astype(np.float32)
        .astype(np.float64)
        for name, shape in names.items()
    }


def attention_tensors() -> Tensors:
    """Return what an attention with every option has."""
    linear = {f"self_attn__{part}_proj__weight": (G * C, D) for part in "kv"}
    linear |= {f"self_attn__{part}_proj__bias": (G * C,) for part in "kv"}
    return tensors(
        input_layernorm__weight=(D,),
        self_attn__q_proj__weight=(H * C, D),
        self_attn__q_proj__bias=(H * C,),
        self_attn__gate_proj__weight=(H * C, D),
        self_attn__o_proj__weight=(D, H * C),
        self_attn__o_proj__bias=(D,),
        self_attn__sinks=(H,),
        post_norm__weight=(D,),
        **linear,
    )


def rms(x: Array, weight: Array) -> Array:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-5) * weight


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def rotated(x: Array) -> Array:
    """Turn halves of each head [T, heads, C] by their position."""
    angles = np.arange(len(x))[:, None] * 10000.0 ** (-np.arange(0, C, 2) / C)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def attend(x: Array, w: Tensors, window: int = 0, scale: float = C**-0.5, **options: Any) -> Array:
    """Return what attention adds to ``x`` [T, D]."""
    normed, heads = rms(x, w[f"{LAYER}input_layernorm.weight"]), {}
    for part in "qkv":
        rows = normed @ w[f"{ATTENTION}{part}_proj.weight"].T
        if options.get("qkv_bias"):
            rows = rows + w[f"{ATTENTION}{part}_proj.bias"]
        if options.get("whole_norm") and part != "v":
            rows = rms(rows, w[f"{ATTENTION}{part}_norm.weight"])
        heads[part] = rows.reshape(len(x), -1, C)
        if options.get("qk_norm") and part != "v":
            heads[part] = rms(heads[part], w[f"{ATTENTION}{part}_norm.weight"])
    q, k = rotated(heads["q"]), rotated(heads["k"]).repeat(H // G, axis=1)
    scores = np.einsum("thc,shc->hts", q, k) * scale
    distance = np.arange(len(x))[:, None] - np.arange(len(x))
    scores[:, (distance < 0) | ((distance >= window) if window else False)] = -np.inf
    if options.get("sinks"):
        sinks = np.broadcast_to(w[f"{ATTENTION}sinks"][:, None, None], (H, len(x), 1))
        scores = np.concatenate([scores, sinks], axis=-1)
    shares = softmax(scores)[..., : len(x)]
    mixed = np.einsum("hts,shc->thc", shares, heads["v"].repeat(H // G, axis=1)).reshape(len(x), -1)
    if options.get("gated"):
        mixed = mixed * sigmoid(normed @ w[f"{ATTENTION}gate_proj.weight"].T)
    out = mixed @ w[f"{ATTENTION}o_proj.weight"].T
    if options.get("qkv_bias"):
        out = out + w[f"{ATTENTION}o_proj.bias"]
    return rms(out, w[f"{LAYER}post_norm.weight"]) if options.get("post_norm") else out


def gated(x: Array, gate: Array, up: Array, down: Array, act: str = "silu") -> Array:
    rows = x @ gate.T
    cubic = np.sqrt(2 / np.pi) * (rows + 0.044715 * rows**3)
    active = rows * sigmoid(rows) if act == "silu" else rows / 2 * (1 + np.tanh(cubic))
    return (active * (x @ up.T)) @ down.T


@pytest.fixture(params=IMPLEMENTATIONS)
def logits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Array]:
    """Return a function that runs what ``record`` adds between embedding and head."""

    def compute(
        record: Callable[[Blocks], None], w: Tensors, architecture: str = "llama", **more: Any
    ) -> Array:
        def whole(blocks: Blocks) -> Outputs:
            blocks.embed()
            record(blocks)
            return blocks.head()

        monkeypatch.setattr(families, "get", lambda architecture: whole)
        banks = more.pop("banks", ())
        matrices = {name: tiny.matrix(values.astype(np.float32)) for name, values in w.items()}
        model = tiny.Tiny(architecture, HYPER | more, matrices, None, banks)
        return run(build(model, graph_class(request.param)), [(0, IDS, 0)]).astype(np.float64)

    return compute


def head(x: Array, w: Tensors) -> Array:
    return rms(x, w["model.norm.weight"]) @ w["lm_head.weight"].T


def assert_near(found: Array, wanted: Array) -> None:
    assert np.abs(found - wanted).max() <= 1e-5 * np.ptp(wanted)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"qkv_bias": True},
        {"qk_norm": True},
        {"whole_norm": True},
        {"sinks": True},
        {"gated": True},
        {"post_norm": "post_norm"},
        {"window": 5},
        {"scale": 0.7},
    ],
)
def test_attention(options: dict[str, Any], logits: Callable[..., Array]) -> None:
    w = attention_tensors()
    for part, heads in (("q", H), ("k", G)):
        size = heads * C if options.get("whole_norm") else C
        w[f"{ATTENTION}{part}_norm.weight"] = (
            np.linspace(0.5, 1.5, size).astype(np.float32).astype(np.float64)
        )
    recorded = {key: value for key, value in options.items() if key not in ("window", "scale")}
    more: dict[str, Any] = {"sliding_window": options["window"]} if "window" in options else {}
    more |= {"attention_multiplier": options["scale"]} if "scale" in options else {}
    found = logits(lambda blocks: blocks.attention(0, **recorded), w, **more)
    x = w["model.embed_tokens.weight"][IDS]
    assert_near(found, head(x + attend(x, w, **options), w))


@pytest.mark.parametrize("act", ["silu", "gelu_pytorch_tanh"])
@pytest.mark.parametrize("post_norm", [None, "post_norm"])
def test_mlp_with_scaled_embedding_residual_and_logits(
    act: str, post_norm: str | None, logits: Callable[..., Array]
) -> None:
    w = tensors(
        ffn_norm__weight=(D,),
        mlp__gate_proj__weight=(F, D),
        mlp__up_proj__weight=(F, D),
        mlp__down_proj__weight=(D, F),
        post_norm__weight=(D,),
    )
    scales = {"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "logits_scaling": 2.5}
    found = logits(
        lambda blocks: blocks.mlp(0, norm="ffn_norm", post_norm=post_norm), w, hidden_act=act, **scales
    )
    x = 3.0 * w["model.embed_tokens.weight"][IDS]
    weights = (w[f"{MLP}{part}_proj.weight"] for part in ("gate", "up", "down"))
    out = gated(rms(x, w[f"{LAYER}ffn_norm.weight"]), *weights, act=act)
    out = rms(out, w[f"{LAYER}post_norm.weight"]) if post_norm else out
    assert_near(found, head(x + 0.4 * out, w) / 2.5)


def experts_of(w: Tensors) -> ExpertBank:
    """Return the experts' bank; their matrices go into ``w`` too."""
    random = np.random.default_rng(4)
    records = []
    for expert in range(E):
        roles = {"gate": (F, D), "up": (F, D), "down": (D, F)}
        values = {role: random.normal(0, 0.2, shape).astype(np.float32) for role, shape in roles.items()}
        w |= {f"{expert}.{role}": value.astype(np.float64) for role, value in values.items()}
        records.append({role: tiny.matrix(value) for role, value in values.items()})
    return make_bank(0, records)


@pytest.mark.parametrize("router_bias", [False, True])
@pytest.mark.parametrize("shared", ["", "plain", "gated"])
def test_experts(router_bias: bool, shared: str, logits: Callable[..., Array]) -> None:
    w = tensors(
        post_attention_layernorm__weight=(D,),
        mlp__gate__weight=(E, D),
        mlp__gate__bias=(E,),
        mlp__shared_expert__gate_proj__weight=(S, D),
        mlp__shared_expert__up_proj__weight=(S, D),
        mlp__shared_expert__down_proj__weight=(D, S),
        mlp__shared_expert_gate__weight=(1, D),
    )
    if shared != "gated":
        del w[f"{MLP}shared_expert_gate.weight"]
    stored = dict(w)
    bank = experts_of(w)
    more = EXPERTS | {"shared_expert_intermediate_size": S if shared else 0}
    found = logits(
        lambda blocks: blocks.experts(0, router_bias=router_bias), stored, "qwen2_moe", banks=(bank,), **more
    )
    x = w["model.embed_tokens.weight"][IDS]
    normed = rms(x, w[f"{LAYER}post_attention_layernorm.weight"])
    scores = softmax(normed @ w[f"{MLP}gate.weight"].T + (w[f"{MLP}gate.bias"] if router_bias else 0))
    out = np.zeros_like(x)
    for row, chosen in enumerate(np.argsort(-scores, axis=1)[:, :2]):
        for expert in chosen:
            share = scores[row, expert] / scores[row, chosen].sum()
            weights = (w[f"{expert}.{role}"] for role in ("gate", "up", "down"))
            out[row] += share * gated(normed[row], *weights)
    if shared:
        weights = (w[f"{MLP}shared_expert.{part}_proj.weight"] for part in ("gate", "up", "down"))
        every = gated(normed, *weights)
        if shared == "gated":
            every = every * sigmoid(normed @ w[f"{MLP}shared_expert_gate.weight"].T)
        out = out + every
    assert_near(found, head(x + out, w))


def test_a_layer_without_experts_has_an_mlp(logits: Callable[..., Array]) -> None:
    w = tensors(
        post_attention_layernorm__weight=(D,),
        mlp__gate_proj__weight=(F, D),
        mlp__up_proj__weight=(F, D),
        mlp__down_proj__weight=(D, F),
    )
    found = logits(lambda blocks: blocks.experts(0), w, "qwen3_moe", **EXPERTS, mlp_only_layers=[0])
    x = w["model.embed_tokens.weight"][IDS]
    weights = (w[f"{MLP}{part}_proj.weight"] for part in ("gate", "up", "down"))
    assert_near(found, head(x + gated(rms(x, w[f"{LAYER}post_attention_layernorm.weight"]), *weights), w))


def test_a_tensor_that_an_option_needs_is_asked_for(logits: Callable[..., Array]) -> None:
    w = attention_tensors()
    del w[f"{ATTENTION}sinks"]
    with pytest.raises(InvalidFtw, match=r"the model has no tensor model\.layers\.0\.self_attn\.sinks"):
        logits(lambda blocks: blocks.attention(0, sinks=True), w)
