"""config.json as the hyperparameters of FTW: one spelling for what families spell in several ways.

What the engine reads is copied; what changes the computation in a way that nobody here knows is refused by
name. Sizes are bounded before they are multiplied.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from ftd.errors import InvalidCheckpoint, Unsupported
from ftd.ftw import encoders, hf_packed, latent, recurrent
from ftd.ftw.checkpoint import Checkpoint
from ftd.ftw.format import ENCODER_TYPES, MAX_EXPERTS, Json
from ftd.ftw.gguf_families import FAMILIES
from ftd.ftw.gguf_moe import MOE_FAMILIES
from ftd.ftw.gguf_parts import MAX_DIM, MAX_LAYERS, Family
from ftd.ftw.hf_tensors import SLAB_BYTES

FAMILY_BY_TYPE: dict[str, Family] = {
    family.model_type: family for family in (*FAMILIES.values(), *MOE_FAMILIES.values())
}
FAMILY_BY_TYPE["deepseek_v2"] = replace(FAMILY_BY_TYPE["deepseek_v3"], model_type="deepseek_v2")
_ALIASES = {
    "gemma3": "gemma3_text",
    "mistral": "llama",
    "granitemoeshared": "granitemoe",
    "qwen3_5_text": "qwen3_5",
    "qwen3_5_moe_text": "qwen3_5_moe",
    **latent.ALIASES,
}
# Families whose definition divides the weights of the chosen experts by their sum
_ALWAYS_NORMALISED = ("mixtral", "granitemoe", "gpt_oss", "qwen3_5_moe")
# Copied as they are where the model has them
_COPIED = """hidden_act hidden_activation rope_theta rope_scaling rope_parameters attn_logit_softcapping
    final_logit_softcapping mlp_bias""".split()  # noqa: SIM905
# … and the family knows them; in others they are left over from the model that one was made of
_QWEN = ("layer_types", "use_sliding_window", "max_window_layers", "sliding_window")
_COPIED_OF = {
    **dict.fromkeys(("qwen2", "qwen2_moe", "qwen3", "qwen3_moe"), _QWEN),
    "mistral": ("layer_types", "sliding_window"),
    "mixtral": ("sliding_window",),
    **dict.fromkeys(
        ("gemma3", "gemma3_text"),
        ("rope_local_base_freq", "layer_types", "sliding_window", "query_pre_attn_scalar"),
    ),
    "glm4_moe": ("partial_rotary_factor", "use_qk_norm"),
    "gpt_oss": ("layer_types", "sliding_window"),
}
# What published files of the models with pictures leave to transformers
GEMMA3_DEFAULTS = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131072,
}
_ROPES = ("default", "none", "linear", "llama3", "yarn", "dynamic")
_PARTLY_ROTATED = ("glm4_moe", *recurrent.MODEL_TYPES)


class _Config:
    """Typed and bounded look-ups in config.json."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values

    def integer(self, *names: str, default: int | None = None, high: int = MAX_DIM) -> int:
        """Return the first of ``names`` that is set, a positive integer."""
        name = next((name for name in names if self.values.get(name) is not None), names[0])
        value = self.values.get(name)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= high:
            raise InvalidCheckpoint(f"{name} of config.json is not between 1 and {high}: {value!r:.50}")
        return value

    def number(self, name: str, default: float) -> float:
        """Return a positive finite number."""
        value = self.values.get(name)
        value = default if value is None else value
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e30:
            raise InvalidCheckpoint(f"{name} of config.json is not a positive number: {value!r:.50}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """Return a bool."""
        value = self.values.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise InvalidCheckpoint(f"{name} of config.json is not a bool: {value!r:.50}")
        return value


def family_of(checkpoint: Checkpoint) -> Family:
    """Return the family of a checkpoint; raise Unsupported with the list of known ones."""
    model_type = checkpoint.config.get("model_type")
    if not isinstance(model_type, str):
        raise InvalidCheckpoint(f"model_type of config.json is not a string: {model_type!r:.50}")
    known = f"use a model of one of {' '.join(sorted((*FAMILY_BY_TYPE, *_ALIASES)))}"
    family = FAMILY_BY_TYPE.get(_ALIASES.get(model_type, model_type))
    if family is None:
        raise Unsupported(f"model architecture is not supported: {model_type!r:.50}", known)
    return family


def hyperparameters(family: Family, checkpoint: Checkpoint) -> dict[str, Json]:
    """Return the settings of a checkpoint under FTW's names."""
    defaults = GEMMA3_DEFAULTS if family.model_type == "gemma3_text" else {}
    config = _Config(defaults | encoders.renamed(checkpoint.config))
    _refuse(family, config)
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    head_dim = config.integer("head_dim", default=max(hidden // heads, 1))
    groups = config.integer("num_key_value_heads", default=heads)
    if heads % groups:
        raise InvalidCheckpoint(f"{heads} heads do not share {groups} key-value heads")
    moe_size = config.integer("moe_intermediate_size", "intermediate_size") if family.experts else None
    hyper: dict[str, Json] = {
        "hidden_size": hidden,
        "intermediate_size": config.integer("intermediate_size", default=moe_size),
        "num_hidden_layers": config.integer("num_hidden_layers", high=MAX_LAYERS),
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "head_dim": head_dim,
        "vocab_size": config.integer("vocab_size"),
        "max_position_embeddings": config.integer("max_position_embeddings", high=1 << 31),
        "rms_norm_eps": config.number("rms_norm_eps", 1e-6),
        "tie_word_embeddings": config.flag("tie_word_embeddings", "lm_head.weight" not in checkpoint.tensors)
        and not _has_own_head(checkpoint),
        "attention_bias": "model.layers.0.self_attn.q_proj.bias" in checkpoint.tensors,
    }
    copied = (*_COPIED, *_COPIED_OF.get(str(config.values["model_type"]), ()))
    hyper |= {name: config.values[name] for name in copied if config.values.get(name) is not None}
    if hyper.get("hidden_act") == "swish":  # another word for it
        hyper["hidden_act"] = "silu"
    if not hyper.get("sliding_window"):
        hyper.pop("sliding_window", None)
    if family.model_type == "gemma3_text":
        hyper |= _gemma3(config, hyper)
    if family.experts:
        hyper |= _routing(family, config)
    if family.model_type in latent.MODEL_TYPES:
        hyper.pop("layer_types", None)  # all layers attend alike
        hyper |= latent.hf_settings(config.values, family.model_type)
    if family.recurrent:
        hyper |= recurrent.hf_settings(config.values)
    if family.model_type in ENCODER_TYPES:
        del hyper["rms_norm_eps"]
        hyper |= encoders.hf_settings(config.values)
    return hyper


def _has_own_head(checkpoint: Checkpoint) -> bool:
    """Say whether the output head has other bytes than the embedding: then config.json is not believed.

    Checkpoints of one matrix for both may hold it twice; transformers 5 decides alike.
    """
    embedding = checkpoint.tensors.get("model.embed_tokens.weight")
    head = checkpoint.tensors.get("lm_head.weight")
    if embedding is None or head is None:
        return False
    if (embedding.dtype, embedding.shape) != (head.dtype, head.shape):
        return True
    for start in range(0, head.num_bytes, SLAB_BYTES):
        num_bytes = min(SLAB_BYTES, head.num_bytes - start)
        if not np.array_equal(embedding.read(start, num_bytes), head.read(start, num_bytes)):
            return True
    return False


def _refuse(family: Family, config: _Config) -> None:
    hf_packed.check_config(config.values, family.model_type)
    values = config.values
    if values.get("clip_qkv") is not None:
        raise Unsupported(f"clip_qkv is not supported: {values['clip_qkv']!r:.50}")
    if family.model_type not in ENCODER_TYPES and (
        values.get("is_causal") is False or values.get("use_bidirectional_attention")
    ):
        raise Unsupported(f"a {family.model_type} model that attends to later tokens is not supported")
    if family.experts and values.get("hidden_act", "silu") not in ("silu", "swish"):
        raise Unsupported(f"hidden_act of experts must be silu: {values['hidden_act']!r:.50}")
    for rotation in _rotations(values):
        kind = rotation.get("rope_type", rotation.get("type", "default"))
        if kind not in _ROPES or "alpha" in rotation:
            raise Unsupported(
                f"rope scaling is not supported: {kind!r:.50}", f"use one of {' '.join(_ROPES)}"
            )
        part = rotation.get("partial_rotary_factor")
        if part not in (None, 1) and family.model_type not in _PARTLY_ROTATED:
            raise Unsupported(f"a {family.model_type} model that rotates a part of each head: {part!r:.50}")


def _rotations(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all objects of config.json that say how channels rotate, its own among them."""
    found = [{name: values[name] for name in ("partial_rotary_factor",) if name in values}]
    for name in ("rope_scaling", "rope_parameters"):
        nested = values.get(name)
        if isinstance(nested, dict):
            kinds = [kind for kind in nested.values() if isinstance(kind, dict)]
            found += kinds or [nested]
    return found


def _gemma3(config: _Config, hyper: dict[str, Json]) -> dict[str, Json]:
    """Return what older files leave to the defaults of the family."""
    more: dict[str, Json] = {"query_pre_attn_scalar": config.number("query_pre_attn_scalar", 256)}
    more["sliding_window"] = config.integer("sliding_window", default=4096)
    if "layer_types" not in hyper:
        pattern = config.integer("sliding_window_pattern", "_sliding_window_pattern", default=6)
        more["layer_types"] = [
            "full_attention" if (index + 1) % pattern == 0 else "sliding_attention"
            for index in range(config.integer("num_hidden_layers", high=MAX_LAYERS))
        ]
    if "rope_parameters" not in hyper:
        more["rope_theta"] = config.number("rope_theta", 1e6)
        more["rope_local_base_freq"] = config.number("rope_local_base_freq", 1e4)
    return more


def _expert_layers(family: Family, config: _Config) -> dict[str, Json]:
    """Return which layers have no experts, if any; raise Unsupported where the family knows none such."""
    num_layers = config.integer("num_hidden_layers", high=MAX_LAYERS)
    which: dict[str, Json] = {}
    if config.values.get("first_k_dense_replace"):
        which["first_k_dense_replace"] = config.integer("first_k_dense_replace", high=num_layers)
    if config.values.get("decoder_sparse_step") not in (None, 1):
        which["decoder_sparse_step"] = config.integer("decoder_sparse_step", high=num_layers)
    listed = config.values.get("mlp_only_layers") or []
    if not isinstance(listed, list) or not all(type(x) is int and 0 <= x < num_layers for x in listed):
        raise InvalidCheckpoint(f"mlp_only_layers of config.json are no layers: {listed!r:.100}")
    if listed:
        which["mlp_only_layers"] = listed
    if which and not family.dense:
        raise Unsupported(f"layers without experts in a {family.model_type} model: {' '.join(which)}")
    return which


def _routing(family: Family, config: _Config) -> dict[str, Json]:
    experts = config.integer("num_experts", "num_local_experts", "n_routed_experts", high=MAX_EXPERTS)
    chosen = config.integer("num_experts_per_tok", high=MAX_EXPERTS)
    if chosen > experts:
        raise InvalidCheckpoint(f"a token uses {chosen} of {experts} experts")
    routing: dict[str, Json] = {
        **_expert_layers(family, config),
        "num_experts": experts,
        "num_experts_per_tok": chosen,
        "moe_intermediate_size": config.integer("moe_intermediate_size", "intermediate_size"),
        "norm_topk_prob": family.model_type in _ALWAYS_NORMALISED
        or config.flag("norm_topk_prob", family.model_type == "qwen3_next"),
    }
    shared = ("shared_expert_intermediate_size", "shared_intermediate_size")
    if any(config.values.get(name) for name in shared):
        routing["shared_expert_intermediate_size"] = config.integer(*shared)
    elif config.values.get("n_shared_experts"):
        inner = config.integer("moe_intermediate_size", "intermediate_size")
        routing["shared_expert_intermediate_size"] = inner * config.integer("n_shared_experts", high=1024)
    if family.model_type in ("glm4_moe", *latent.MODEL_TYPES):
        for name in ("n_group", "topk_group"):
            if config.values.get(name) is not None:
                routing[name] = config.integer(name, high=experts)
        routing["routed_scaling_factor"] = config.number("routed_scaling_factor", 1.0)
    if family.model_type == "granitemoe":
        for name in ("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"):
            routing[name] = config.number(name, 1.0)
    if family.model_type == "glm4_moe" and "partial_rotary_factor" not in config.values:
        nested = config.values.get("rope_parameters") or config.values.get("rope_scaling") or {}
        if isinstance(nested, dict) and "partial_rotary_factor" not in nested:
            routing["partial_rotary_factor"] = 0.5
    if family.model_type == "gpt_oss":
        if config.values.get("layer_types") is None:
            layers = range(config.integer("num_hidden_layers", high=MAX_LAYERS))
            routing["layer_types"] = ["full_attention" if x % 2 else "sliding_attention" for x in layers]
        routing["swiglu_limit"] = config.number("swiglu_limit", 7.0)
        routing["swiglu_alpha"] = config.number("swiglu_alpha", 1.702)
    return routing
