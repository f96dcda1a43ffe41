"""GGUF architectures with experts: tensors in Hugging Face's words and in the roles of an expert record.

All families use one spelling: the router is ``mlp.gate``, a shared expert ``mlp.shared_expert``. Whatever
the definition of a family calls it, ``norm_topk_prob`` says if the weights of the chosen experts are divided
by their sum (a softmax over the chosen logits alone is the same).
"""

from collections.abc import Callable

from ftd.errors import InvalidGguf, Unsupported
from ftd.ftw import gptoss, latent, recurrent
from ftd.ftw.format import MAX_EXPERTS, Json
from ftd.ftw.gguf_parts import (
    MLP_BESIDE_EXPERTS,
    OUTER,
    TWO_NORMS,
    ExpertPart,
    Family,
    Part,
    Settings,
    attention,
)

_EXPERTS = (
    ExpertPart("ffn_gate_exps.weight", "gate", "FD"),
    ExpertPart("ffn_up_exps.weight", "up", "FD"),
    ExpertPart("ffn_down_exps.weight", "down", "DF"),
)
_EXPERT_BIASES = (
    ExpertPart("ffn_gate_exps.bias", "gate_bias", "F"),
    ExpertPart("ffn_up_exps.bias", "up_bias", "F"),
    ExpertPart("ffn_down_exps.bias", "down_bias", "D"),
)
SIGMOID = 2  # gguf's number of the gating function
_ROUTER = Part("ffn_gate_inp.weight", "mlp.gate.weight", "ED")
_CORRECTION = Part("exp_probs_b.bias", "mlp.gate.e_score_correction_bias", "E", False)


def _shared(required: bool) -> tuple[Part, ...]:
    return (
        Part("ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight", "SD", required),
        Part("ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight", "SD", required),
        Part("ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight", "DS", required),
    )


_GLM_ATTENTION = (
    Part("attn_norm.weight", "input_layernorm.weight", "D"),
    Part("post_attention_norm.weight", "post_attention_layernorm.weight", "D"),
    *attention(),
    Part("attn_q_norm.weight", "self_attn.q_norm.weight", "C", False),
    Part("attn_k_norm.weight", "self_attn.k_norm.weight", "C", False),
)
_OLMOE_NORMS = (
    Part("attn_q_norm.weight", "self_attn.q_norm.weight", "Q"),
    Part("attn_k_norm.weight", "self_attn.k_norm.weight", "W"),
)


def _routing(norm_topk_prob: bool) -> Callable[[Settings], dict[str, Json]]:
    """Return the reader of the settings that all families have."""

    def read(settings: Settings) -> dict[str, Json]:
        experts = settings.integer("expert_count", high=MAX_EXPERTS)
        chosen = settings.integer("expert_used_count", high=MAX_EXPERTS)
        if chosen > experts:
            raise InvalidGguf(f"a token uses {chosen} of {experts} experts")
        own_size = settings.has("expert_feed_forward_length")
        hyper: dict[str, Json] = {
            "hidden_act": "silu",
            "num_experts": experts,
            "num_experts_per_tok": chosen,
            "moe_intermediate_size": settings.integer(
                "expert_feed_forward_length" if own_size else "feed_forward_length"
            ),
            "norm_topk_prob": settings.flag("expert_weights_norm", norm_topk_prob),
        }
        if settings.has("expert_shared_feed_forward_length"):
            shared = settings.integer("expert_shared_feed_forward_length")
            hyper["shared_expert_intermediate_size"] = shared
        return hyper

    return read


def _granite(settings: Settings) -> dict[str, Json]:
    per_head = settings.integer("embedding_length") // settings.integer("attention.head_count")
    head_dim = settings.integer("attention.key_length", per_head)
    return {
        **_routing(True)(settings),
        "attention_multiplier": settings.number("attention.scale", head_dim**-0.5),
        "embedding_multiplier": settings.number("embedding_scale", 1.0),
        "residual_multiplier": settings.number("residual_scale", 1.0),
        "logits_scaling": settings.number("logit_scale", 1.0),
    }


def _glm4_moe(settings: Settings) -> dict[str, Json]:
    """Return GLM 4's settings; its routing is a sigmoid unless the file says otherwise."""
    if settings.has("expert_gating_func") and settings.integer("expert_gating_func") != SIGMOID:
        raise Unsupported(f"gating function of experts: {settings.integer('expert_gating_func')}")
    hyper = _grouped(True)(settings)
    hyper["use_qk_norm"] = settings.has_tensor("blk.0.attn_q_norm.weight")
    return hyper


def _deepseek32(settings: Settings) -> dict[str, Json]:
    """Return the settings of DeepSeek V3.2: those of V3, and its indexer's."""
    return _deepseek2(settings) | latent.gguf_index_settings(settings)


def _glm_dsa(settings: Settings) -> dict[str, Json]:
    """Return the settings of GLM 5, some of whose layers take another's selection."""
    hyper = _grouped(True)(settings) | latent.gguf_settings(settings) | latent.gguf_index_settings(settings)
    hyper["scoring_func"] = latent.gguf_scoring(settings, SIGMOID)
    return hyper | latent.gguf_shared_selections(settings)


def _deepseek2(settings: Settings) -> dict[str, Json]:
    """Return the settings of DeepSeek V2 and V3, which differ in how experts are scored."""
    hyper = _grouped(False)(settings) | latent.gguf_settings(settings)
    hyper["scoring_func"] = latent.gguf_scoring(settings)
    return hyper


def _grouped(norm_topk_prob: bool) -> Callable[[Settings], dict[str, Json]]:
    """Return the reader of the settings of models with groups of experts, a shared one and dense layers."""
    return lambda settings: _grouped_settings(settings, _routing(norm_topk_prob)(settings))


def _grouped_settings(settings: Settings, hyper: dict[str, Json]) -> dict[str, Json]:
    hyper["routed_scaling_factor"] = settings.number("expert_weights_scale", 1.0)
    if settings.has("leading_dense_block_count"):
        hyper["first_k_dense_replace"] = settings.integer("leading_dense_block_count", low=0)
    for key, name in (("expert_group_count", "n_group"), ("expert_group_used_count", "topk_group")):
        if settings.has(key):
            hyper[name] = settings.integer(key)
    if settings.has("expert_shared_count"):
        inner = settings.integer("expert_feed_forward_length")
        count = settings.integer("expert_shared_count", low=0, high=1024)
        hyper["shared_expert_intermediate_size"] = inner * count
    return hyper


_SHARED_BEHIND_GATE = (
    _ROUTER,
    *_shared(True),
    Part("ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight", "D"),
)


def _hybrid(model_type: str, *, fused_rates: bool) -> Family:
    """Return a family of gated delta nets and gated attentions with experts in all layers."""
    return Family(
        model_type,
        OUTER,
        (*recurrent.NORMS, *recurrent.ATTENTION, *_SHARED_BEHIND_GATE),
        recurrent.gguf_settings(not fused_rates, _routing(True)),
        _EXPERTS,
        recurrent=(*recurrent.NORMS, *recurrent.delta_net(fused_rates), *_SHARED_BEHIND_GATE),
    )


def _sparse(settings: Callable[[Settings], dict[str, Json]]) -> Family:
    """Return a family of latent and sparse attention."""
    return Family(
        "deepseek_v32",
        OUTER,
        (*latent.ATTENTION, *latent.INDEXER, _ROUTER, _CORRECTION, *_shared(False)),
        settings,
        _EXPERTS,
        (*latent.ATTENTION, *latent.INDEXER, *MLP_BESIDE_EXPERTS),
    )


_GPT_OSS = Family(
    "gpt_oss",
    OUTER,
    (*gptoss.ATTENTION, _ROUTER, Part("ffn_gate_inp.bias", "mlp.gate.bias", "E")),
    gptoss.settings(_routing(True)),
    (*_EXPERTS, *_EXPERT_BIASES),
    alternating=True,
)

_DEEPSEEK2 = Family(
    "deepseek_v3",
    OUTER,
    (*latent.ATTENTION, _ROUTER, _CORRECTION, *_shared(False)),
    _deepseek2,
    _EXPERTS,
    (*latent.ATTENTION, *MLP_BESIDE_EXPERTS),
)

MOE_FAMILIES: dict[str, Family] = {
    "deepseek2": _DEEPSEEK2,
    "glm4moelite": _DEEPSEEK2,
    "deepseek32": _sparse(_deepseek32),
    "glm-dsa": _sparse(_glm_dsa),
    "llama": Family(
        "mixtral",
        OUTER,
        (*TWO_NORMS, *attention(interleaved=True), _ROUTER),
        _routing(True),
        _EXPERTS,
    ),
    "qwen2moe": Family(
        "qwen2_moe",
        OUTER,
        (
            *TWO_NORMS,
            *attention(biases=True),
            *_SHARED_BEHIND_GATE,
        ),
        _routing(False),
        _EXPERTS,
    ),
    "qwen3moe": Family(
        "qwen3_moe",
        OUTER,
        (*TWO_NORMS, *attention(norms=True), _ROUTER),
        _routing(True),
        _EXPERTS,
        (*TWO_NORMS, *attention(norms=True), *MLP_BESIDE_EXPERTS),
    ),
    "glm4moe": Family(
        "glm4_moe",
        OUTER,
        (
            *_GLM_ATTENTION,
            _ROUTER,
            _CORRECTION,
            *_shared(False),
        ),
        _glm4_moe,
        _EXPERTS,
        (*_GLM_ATTENTION, *MLP_BESIDE_EXPERTS),
    ),
    "qwen3next": _hybrid("qwen3_next", fused_rates=True),
    "qwen35moe": _hybrid("qwen3_5_moe", fused_rates=False),
    "olmoe": Family(
        "olmoe", OUTER, (*TWO_NORMS, *attention(), *_OLMOE_NORMS, _ROUTER), _routing(False), _EXPERTS
    ),
    "granitemoe": Family(
        "granitemoe",
        OUTER,
        (*TWO_NORMS, *attention(interleaved=True), _ROUTER, *_shared(False)),
        _granite,
        _EXPERTS,
    ),
    **dict.fromkeys(gptoss.ARCHITECTURES, _GPT_OSS),
}
