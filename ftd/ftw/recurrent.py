"""Families with recurrent layers (Qwen3-Next, Qwen3.5): tensors and settings, from GGUF and config.json.

In FTW ``linear_attn.A`` is -exp(A_log), as GGUF has it, norms that multiply by 1 + weight hold the sum, and
fused projections are apart. GGUF files of Qwen3.5 tile the value heads over the key heads
(``linear_heads_tiled``) where checkpoints keep those of one key head together.
"""

from collections.abc import Callable
from typing import Any

from ftd.errors import InvalidCheckpoint, InvalidGguf
from ftd.ftw.format import Json
from ftd.ftw.gguf_parts import MAX_LAYERS, Part, Settings

MODEL_TYPES = ("qwen3_5", "qwen3_5_moe", "qwen3_next")
LINEAR, FULL = "linear_attention", "full_attention"
ROTATED = 0.25  # of a head's channels, where a file does not say

NORMS = (
    Part("attn_norm.weight", "input_layernorm.weight", "D"),
    Part("post_attention_norm.weight", "post_attention_layernorm.weight", "D"),
)
ATTENTION = (
    Part("attn_q.weight", "self_attn.q_proj.weight", "QD", fused="query"),
    Part("attn_q.weight", "self_attn.gate_proj.weight", "QD", fused="gate"),
    Part("attn_k.weight", "self_attn.k_proj.weight", "WD"),
    Part("attn_v.weight", "self_attn.v_proj.weight", "WD"),
    Part("attn_output.weight", "self_attn.o_proj.weight", "DQ"),
    Part("attn_q_norm.weight", "self_attn.q_norm.weight", "C"),
    Part("attn_k_norm.weight", "self_attn.k_norm.weight", "C"),
)


def delta_net(fused_rates: bool) -> tuple[Part, ...]:
    """Return the tensors of a gated delta net; b and a are one tensor in GGUF files of Qwen3-Next."""
    rates = ("ssm_ba", "ssm_ba") if fused_rates else ("ssm_beta", "ssm_alpha")
    kinds = ("b", "a") if fused_rates else ("", "")
    older = {kind: ("ssm_in.weight", kind) if fused_rates else None for kind in ("qkv", "z")}
    return (
        Part("attn_qkv.weight", "linear_attn.in_proj_qkv.weight", "AD", older=older["qkv"]),
        Part("attn_gate.weight", "linear_attn.in_proj_z.weight", "BD", older=older["z"]),
        Part(f"{rates[0]}.weight", "linear_attn.in_proj_b.weight", "ND", fused=kinds[0]),
        Part(f"{rates[1]}.weight", "linear_attn.in_proj_a.weight", "ND", fused=kinds[1]),
        Part("ssm_conv1d.weight", "linear_attn.conv1d.weight", "AK"),
        Part("ssm_a", "linear_attn.A", "N"),
        Part("ssm_dt.bias", "linear_attn.dt_bias", "N", older=("ssm_dt", "")),
        Part("ssm_norm.weight", "linear_attn.norm.weight", "M"),
        Part("ssm_out.weight", "linear_attn.out_proj.weight", "DB"),
    )


def gguf_settings(tiled: bool, more: Callable[[Settings], dict[str, Json]]) -> Callable[..., dict[str, Json]]:
    """Return the reader of the settings of recurrent layers, and of ``more``."""

    def read(settings: Settings) -> dict[str, Json]:
        value_heads, inner = settings.integer("ssm.time_step_rank"), settings.integer("ssm.inner_size")
        key_heads = settings.integer("ssm.group_count")
        if value_heads % key_heads:
            raise InvalidGguf(f"{value_heads} value heads do not share {key_heads} key heads")
        if inner % value_heads:
            raise InvalidGguf(f"{inner} channels do not divide into {value_heads} value heads")
        return {
            **more(settings),
            "layer_types": _gguf_layers(settings),
            "linear_num_key_heads": key_heads,
            "linear_num_value_heads": value_heads,
            "linear_key_head_dim": settings.integer("ssm.state_size"),
            "linear_value_head_dim": inner // value_heads,
            "linear_conv_kernel_dim": settings.integer("ssm.conv_kernel"),
            "linear_heads_tiled": tiled and settings.flag("ssm.v_head_reordered", True),
        }

    return read


def _gguf_layers(settings: Settings) -> list[Json]:
    """Return the kind of each layer: as listed, or every so many an attention."""
    layers = settings.integer("block_count", high=MAX_LAYERS) - settings.integer(
        "nextn_predict_layers", 0, low=0
    )
    listed = settings.flags("attention.recurrent_layers")
    if listed is None:
        interval = settings.integer("full_attention_interval", 4)
        listed = [(layer + 1) % interval != 0 for layer in range(layers)]
    if len(listed) < layers:
        raise InvalidGguf(f"attention.recurrent_layers has {len(listed)} entries for {layers} layers")
    return [LINEAR if is_recurrent else FULL for is_recurrent in listed[:layers]]


def hf_settings(config: dict[str, Any]) -> dict[str, Json]:
    """Return the settings of recurrent layers under FTW's names; raise InvalidCheckpoint."""
    sizes: dict[str, Json] = {}
    for name, default in (
        ("linear_num_key_heads", 16),
        ("linear_num_value_heads", 32),
        ("linear_key_head_dim", 128),
        ("linear_value_head_dim", 128),
        ("linear_conv_kernel_dim", 4),
    ):
        value = config.get(name, default)
        if type(value) is not int or not 1 <= value <= 1 << 12:
            raise InvalidCheckpoint(f"{name} of config.json is not between 1 and 4096: {value!r:.50}")
        sizes[name] = value
    if int(str(sizes["linear_num_value_heads"])) % int(str(sizes["linear_num_key_heads"])):
        raise InvalidCheckpoint("linear_num_value_heads is no multiple of linear_num_key_heads")
    return {**sizes, "layer_types": _hf_layers(config), "partial_rotary_factor": _rotated(config)}


def _hf_layers(config: dict[str, Any]) -> list[Json]:
    layers, kinds = config.get("num_hidden_layers"), config.get("layer_types")
    if type(layers) is not int or not 1 <= layers <= MAX_LAYERS:
        raise InvalidCheckpoint(f"num_hidden_layers of config.json is no number of layers: {layers!r:.50}")
    if kinds is None:
        interval = config.get("full_attention_interval", 4)
        if type(interval) is not int or interval < 1:
            raise InvalidCheckpoint(f"full_attention_interval of config.json is below 1: {interval!r:.50}")
        return [FULL if (layer + 1) % interval == 0 else LINEAR for layer in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers or not set(map(str, kinds)) <= {LINEAR, FULL}:
        raise InvalidCheckpoint(f"layer_types of config.json does not fit {layers} layers: {kinds!r:.100}")
    return list(kinds)


def _rotated(config: dict[str, Any]) -> float:
    """Return which part of a head's channels is rotated."""
    nested = config.get("rope_parameters") or config.get("rope_scaling") or {}
    value = nested.get("partial_rotary_factor") if isinstance(nested, dict) else None
    value = config.get("partial_rotary_factor", ROTATED) if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise InvalidCheckpoint(f"partial_rotary_factor of config.json is not in 0 to 1: {value!r:.50}")
    return float(value)
