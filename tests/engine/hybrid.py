"""Tiny random models with recurrent layers made by transformers: their oracle, and what the engine reads."""

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.engine import moe
from tests.engine.tiny import SIZES, Tiny, matrix

LAYERS = ["linear_attention", "linear_attention", "full_attention", "linear_attention"]
SHARED: dict[str, Any] = {
    **SIZES,
    "num_hidden_layers": 4,
    "layer_types": LAYERS,
    "head_dim": 32,
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.25,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 40,
    "linear_conv_kernel_dim": 4,
}
EXPERTS: dict[str, Any] = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
    "norm_topk_prob": True,
}
CASES: dict[str, dict[str, Any]] = {
    "qwen3_next": SHARED | EXPERTS | {"tie_word_embeddings": False},
    "qwen3_5_moe": SHARED | EXPERTS,
    "qwen3_5": SHARED,
}
# transformers' classes of the text models
MODEL_TYPES = {"qwen3_5_moe": "qwen3_5_moe_text", "qwen3_5": "qwen3_5_text", "qwen3_next": "qwen3_next"}


def oracle_of(case: str, seed: int = 1, **changes: Any) -> tuple[dict[str, Any], Any]:
    """Return the settings of ``CASES[case]`` with ``changes``, and transformers' random model of them."""
    import torch
    import transformers

    values = CASES[case] | changes
    theirs = {
        key: value for key, value in values.items() if key not in ("rope_theta", "partial_rotary_factor")
    }
    theirs["rope_parameters"] = {
        "rope_type": "default",
        "rope_theta": values["rope_theta"],
        "partial_rotary_factor": values["partial_rotary_factor"],
    }
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = transformers.AutoConfig.for_model(MODEL_TYPES[case], **theirs)
        oracle = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    oracle = oracle.float().eval()
    with torch.no_grad():
        for name, parameter in oracle.named_parameters():
            if name.endswith("A_log"):
                parameter.uniform_(-3.0, 1.0)
            else:
                centre = 1.0 if name.endswith("linear_attn.norm.weight") else 0.0
                parameter.normal_(centre, 0.2 if "norm" in name or name.endswith("bias") else 0.1)
    return values, oracle


def make(case: str, seed: int = 1, **changes: Any) -> Tiny:
    """Build the random model of ``CASES[case]``, with ``changes`` to its config."""
    values, oracle = oracle_of(case, seed, **changes)
    state = oracle.state_dict()
    if values["tie_word_embeddings"]:
        state.pop("lm_head.weight", None)
    banks = moe.take_banks("qwen3_moe", state)
    tensors: dict[str, NDArray[np.float32]] = {}
    for name, tensor in state.items():
        tensors |= ours(moe.our_name(name), tensor.numpy(), values)
    return Tiny(case, values, {name: matrix(value) for name, value in tensors.items()}, oracle, banks)


def ours(name: str, tensor: NDArray[np.float32], values: dict[str, Any]) -> dict[str, NDArray[np.float32]]:
    """Return what a tensor of transformers becomes in FTW: parts of fused ones, decays, norms plus one."""
    stem, _, last = name.rpartition(".")
    heads, ratio = values["linear_num_key_heads"], values["linear_num_value_heads"]
    ratio //= heads
    if last == "A_log":
        return {f"{stem}.A": -np.exp(tensor)}
    if name.endswith("conv1d.weight"):
        return {name: tensor[:, 0]}
    if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
        return {name: tensor + 1}
    if name.endswith("self_attn.q_proj.weight"):
        pairs = tensor.reshape(values["num_attention_heads"], 2, values["head_dim"], -1)
        gate = name.replace("q_proj", "gate_proj")
        return {name: flat(pairs[:, 0]), gate: flat(pairs[:, 1])}
    if name.endswith("in_proj_qkvz.weight"):
        key, value = values["linear_key_head_dim"], ratio * values["linear_value_head_dim"]
        parts = np.split(
            tensor.reshape(heads, 2 * (key + value), -1), [key, 2 * key, 2 * key + value], axis=1
        )
        q, k, v, z = (flat(part) for part in parts)
        return {name.replace("qkvz", "qkv"): np.concatenate([q, k, v]), name.replace("qkvz", "z"): z}
    if name.endswith("in_proj_ba.weight"):
        pairs = tensor.reshape(heads, 2, ratio, -1)
        return {name.replace("_ba", "_b"): flat(pairs[:, 0]), name.replace("_ba", "_a"): flat(pairs[:, 1])}
    return {name: tensor}


def flat(parts: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return ``parts`` [heads, rows, D] as a matrix."""
    return np.ascontiguousarray(parts.reshape(-1, parts.shape[-1]))
