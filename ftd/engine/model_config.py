"""What the engine knows of a model, read once from the hyperparameters of its FTW config.

Dimension letters, used in every shape of the engine and the kernels:

    T  tokens in this step, all sequences flat     E  experts in a layer           D  hidden size
    B  sequences in the batch                      K  experts per token (top-k)    V  vocabulary
    S  context length of one sequence              R  slots (resident experts)     H  query heads
    L  layers                                      P  pages                        G  key-value heads
    F  inner size of an expert or mlp              C  head size
    M, N, K are GEMM sizes inside a GEMM kernel only
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from ftd.engine import latent_config, recurrent_config
from ftd.engine.hyperparameters import MAX_SIZE, Values
from ftd.engine.latent_config import LatentConfig
from ftd.engine.recurrent_config import LINEAR, RecurrentConfig
from ftd.errors import InvalidFtw, Unsupported

MAX_LAYERS = 4096
ACTIVATIONS = ("silu", "gelu_pytorch_tanh")
MAX_GROUPS = 256
NOT_RENORMALISED = frozenset(("deepseek_v2", "olmoe", "qwen2_moe", "qwen3_moe"))
SWIGLU_ALPHA = 1.702
ENCODERS = frozenset(("bert", "nomic_bert"))
MOE_ARCHITECTURES = frozenset(
    (
        "deepseek_v2",
        "deepseek_v3",
        "deepseek_v32",
        "glm4_moe",
        "gpt_oss",
        "granitemoe",
        "mixtral",
        "olmoe",
        "qwen2_moe",
        "qwen3_5_moe",
        "qwen3_moe",
        "qwen3_next",
    )
)
LATENT = frozenset(("deepseek_v2", "deepseek_v3", "deepseek_v32"))
SIGMOID = frozenset(("deepseek_v3", "deepseek_v32", "glm4_moe"))
RECURRENT = frozenset(("qwen3_5", "qwen3_5_moe", "qwen3_next"))


class RopeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Rotary embedding: base ``theta``, number of rotated channels, scaling rule with its own parameters."""

    theta: float
    dim: int
    kind: str = "default"
    parameters: Mapping[str, Any]


class ExpertsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Mixture of experts: how many there are, how a token's are chosen and weighted, what each computes.

    ``layers`` says of each layer whether it has experts instead of an mlp. ``shared_size`` is the inner size
    of the expert that all tokens use, 0 where there is none. The rest is as in ``route_topk_ref`` and
    ``expert_ffn_ref``.
    """

    num_experts: int
    num_chosen: int
    inner_size: int
    shared_size: int
    scoring: str
    renormalise: bool
    scale: float
    num_groups: int
    top_groups: int
    group_top: int
    activation: str
    limit: float
    layers: tuple[bool, ...]


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and constants of one model; every number is checked, so the rest of the engine trusts them.

    ``windows`` has one entry a layer: how many tokens attention sees, 0 for all. Layers with a window rotate
    by ``local_rope`` where the model has one. ``attention_scale`` multiplies q·k, ``residual_scale`` all
    that is added to the residual stream. ``rms_norm_eps`` is that of all norms, whatever their kind. An
    encoder attends in both directions, so its sequences run whole, and has no logits.
    """

    architecture: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    activation: str
    attention_scale: float
    embedding_scale: float
    residual_scale: float
    logit_scale: float
    rope: RopeConfig
    local_rope: RopeConfig | None
    max_context_tokens: int
    tie_word_embeddings: bool
    attention_bias: bool
    qk_norm: bool
    windows: tuple[int, ...]
    experts: ExpertsConfig | None
    is_encoder: bool = False
    num_token_types: int = 0
    recurrent: RecurrentConfig | None = None
    latent: LatentConfig | None = None

    @property
    def num_kv_layers(self) -> int:
        """Layers with attention, which keep K and V."""
        return self.num_layers - (sum(self.recurrent.layers) if self.recurrent else 0)

    def kv_bytes_per_token(self, item_bytes: int) -> int:
        """Return the bytes that K and V of one token take over all layers, ``item_bytes`` a value."""
        if self.latent is not None:
            kept = self.num_layers * self.latent.row_size + self.latent.kept_values
            return kept * item_bytes
        return 2 * self.num_kv_layers * self.num_kv_heads * self.head_dim * item_bytes


def make(architecture: str, hyperparameters: Mapping[str, Any]) -> ModelConfig:
    """Read ``hyperparameters`` (names of a Hugging Face config.json).

    Raises InvalidFtw when a value is missing, of the wrong type or contradicts another; Unsupported when it
    asks for what the engine cannot compute.
    """
    values = Values(hyperparameters)
    hidden_size = values.size("hidden_size")
    num_heads = values.size("num_attention_heads")
    num_kv_heads = values.size("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise InvalidFtw(
            f"num_attention_heads must be a multiple of num_key_value_heads: {num_heads}, {num_kv_heads}"
        )
    if hidden_size % num_heads and values.is_absent("head_dim"):
        raise InvalidFtw(f"hidden_size must be a multiple of num_attention_heads: {hidden_size}, {num_heads}")
    num_layers = values.size("num_hidden_layers", limit=MAX_LAYERS)
    latent = latent_config.make(values, num_layers) if architecture in LATENT else None
    head_dim = latent.rope_dim if latent else values.size("head_dim", max(1, hidden_size // num_heads))
    if head_dim % 2:
        raise InvalidFtw(f"head_dim must be even: {head_dim}")
    activation = _activation(values, architecture)
    rope, local_rope = _ropes(values, head_dim)
    if architecture == "gpt_oss":  # trained without rounding the bounds of yarn's bands
        rope = replace(rope, parameters={"truncate": False, **rope.parameters})
    experts = _experts(values, architecture, num_layers) if architecture in MOE_ARCHITECTURES else None
    inner = None if experts is None else experts.inner_size
    scale = values.number("query_pre_attn_scalar", head_dim, low=1.0, high=MAX_SIZE) ** -0.5
    return ModelConfig(
        architecture=architecture,
        hidden_size=hidden_size,
        intermediate_size=values.size("intermediate_size", inner),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=values.size("vocab_size"),
        rms_norm_eps=values.number(
            "layer_norm_eps" if architecture in ENCODERS else "rms_norm_eps", 1e-6, low=0.0, high=1.0
        ),
        activation=activation,
        attention_scale=values.number("attention_multiplier", scale, low=0.0, high=1e3),
        embedding_scale=values.number("embedding_multiplier", 1.0, low=0.0, high=1e6),
        residual_scale=values.number("residual_multiplier", 1.0, low=0.0, high=1e3),
        logit_scale=1.0 / values.number("logits_scaling", 1.0, low=1e-6, high=1e6),
        rope=rope,
        local_rope=local_rope,
        max_context_tokens=values.size("max_position_embeddings", limit=1 << 31),
        tie_word_embeddings=values.flag("tie_word_embeddings"),
        attention_bias=values.flag("attention_bias"),
        qk_norm=values.flag("use_qk_norm"),
        windows=_windows(values, architecture, num_layers),
        experts=experts,
        is_encoder=architecture in ENCODERS,
        num_token_types=values.size("type_vocab_size", 0, low=0),
        latent=latent,
        recurrent=recurrent_config.make(values, num_layers) if architecture in RECURRENT else None,
    )


def _activation(values: Values, architecture: str) -> str:
    """Return the activation of mlps; raise Unsupported for it or for what else the engine cannot compute."""
    activation = values.text("hidden_act", values.text("hidden_activation", "silu"))
    known = ("gelu", "silu") if architecture in ENCODERS else ACTIVATIONS
    if activation not in known:
        raise Unsupported(f"hidden_act must be one of {' '.join(known)}: {activation}")
    for name in ("mlp_bias", "attn_logit_softcapping", "final_logit_softcapping", "clip_qkv"):
        if values.values.get(name) not in (None, False):
            raise Unsupported(f"{name} is not supported: {values.values[name]!r:.50}")
    return activation


def _experts(values: Values, architecture: str, num_layers: int) -> ExpertsConfig:
    """Read the experts; families spell some names in two ways."""
    num_experts = values.first_size(("num_experts", "num_local_experts", "n_routed_experts"), limit=1 << 16)
    num_chosen = values.size("num_experts_per_tok", limit=1 << 16)
    num_groups, top_groups = values.size("n_group", 1), values.size("topk_group", 1)
    if values.text("topk_method", "") == "greedy":
        num_groups = top_groups = 1
    if num_experts % num_groups or top_groups > num_groups or num_groups > MAX_GROUPS:
        raise InvalidFtw(
            f"experts, n_group and topk_group do not fit: {num_experts} {num_groups} {top_groups}"
        )
    if num_chosen > num_experts // num_groups * top_groups:
        raise InvalidFtw(f"num_experts_per_tok exceeds the experts that can be chosen: {num_chosen}")
    inner = values.first_size(("moe_intermediate_size", "intermediate_size"))
    scoring = values.text("scoring_func", "sigmoid" if architecture in SIGMOID else "softmax")
    if scoring not in ("softmax", "sigmoid"):
        raise Unsupported(f"scoring_func must be softmax or sigmoid: {scoring!r:.50}")
    if values.number("swiglu_alpha", SWIGLU_ALPHA, low=0.0, high=10.0) != SWIGLU_ALPHA:
        raise Unsupported(f"swiglu_alpha must be {SWIGLU_ALPHA}: {values.values['swiglu_alpha']}")
    shared = values.size("shared_expert_intermediate_size", 0, low=0)
    return ExpertsConfig(
        num_experts=num_experts,
        num_chosen=num_chosen,
        inner_size=inner,
        shared_size=shared or inner * values.size("n_shared_experts", 0, low=0, limit=1024),
        scoring=scoring,
        renormalise=values.flag("norm_topk_prob", architecture not in NOT_RENORMALISED),
        scale=values.number("routed_scaling_factor", 1.0, low=0.0, high=1e6),
        num_groups=num_groups,
        top_groups=top_groups,
        group_top=1 if scoring == "softmax" else 2,
        activation="silu" if values.is_absent("swiglu_limit") else "clamped",
        limit=values.number("swiglu_limit", 7.0, low=0.0, high=1e6),
        layers=_expert_layers(values, num_layers),
    )


def _expert_layers(values: Values, num_layers: int) -> tuple[bool, ...]:
    """Return for each layer whether it has experts."""
    first = values.size("first_k_dense_replace", 0, low=0)
    every = values.size("decoder_sparse_step", 1)
    dense = values.values.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(isinstance(layer, int) for layer in dense):
        raise InvalidFtw("mlp_only_layers must be a list of integers")
    return tuple(
        layer >= first and (layer + 1) % every == 0 and layer not in dense for layer in range(num_layers)
    )


def _ropes(values: Values, head_dim: int) -> tuple[RopeConfig, RopeConfig | None]:
    """Read the rotation of all layers, and that of layers with a window if it differs.

    Older configs have ``rope_theta``, ``rope_scaling`` and ``rope_local_base_freq``; newer ones hold the same
    in ``rope_parameters``, with one object for each kind of layer where they differ.
    """
    newer = Values(values.mapping("rope_parameters"))
    if not newer.is_absent("full_attention"):
        full, local = newer.mapping("full_attention"), newer.mapping("sliding_attention")
        return _rope(values, full, head_dim), _rope(values, local, head_dim)
    rope = _rope(values, {**values.mapping("rope_scaling"), **newer.values}, head_dim)
    if values.is_absent("rope_local_base_freq"):
        return rope, None
    theta = values.number("rope_local_base_freq", 0.0, low=1.0, high=1e12)
    return rope, _rope(values, {"rope_theta": theta}, head_dim)


def _rope(values: Values, parameters: Mapping[str, Any], head_dim: int) -> RopeConfig:
    """Read one rotation; what ``parameters`` lacks comes from ``values``."""
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if not isinstance(kind, str):
        raise InvalidFtw(f"rope_type must be a string: {kind!r}")
    inner = Values(parameters)
    theta = inner.number(
        "rope_theta", values.number("rope_theta", 10000.0, low=1.0, high=1e12), low=1.0, high=1e12
    )
    factor = inner.number(
        "partial_rotary_factor",
        values.number("partial_rotary_factor", 1.0, low=0.0, high=1.0),
        low=0.0,
        high=1.0,
    )
    dim = int(head_dim * factor)
    if dim <= 0 or dim % 2:
        raise InvalidFtw(f"rotated channels must be even and positive: {dim} of {head_dim}")
    return RopeConfig(theta=theta, dim=dim, kind=kind, parameters=parameters)


def _windows(values: Values, architecture: str, num_layers: int) -> tuple[int, ...]:
    """Return the attention window of each layer, 0 where it is unbounded."""
    window = 0 if values.is_absent("sliding_window") else values.size("sliding_window")
    kinds = values.texts("layer_types")
    if kinds:
        if len(kinds) != num_layers:
            raise InvalidFtw(f"layer_types must have one entry a layer: {len(kinds)} of {num_layers}")
        known = {"full_attention", "sliding_attention"}
        if unknown := sorted(set(kinds) - known - ({LINEAR} if architecture in RECURRENT else set())):
            raise Unsupported(f"layer type of architecture {architecture}: {unknown[0]}")
        if "sliding_attention" in kinds and window == 0:
            raise InvalidFtw("layer_types has sliding_attention but sliding_window is not given")
        return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
    if architecture.startswith("qwen"):
        if not values.flag("use_sliding_window"):
            window = 0
        first = values.size("max_window_layers", num_layers, low=0)
        return tuple(window if layer >= first else 0 for layer in range(num_layers))
    return (window,) * num_layers
