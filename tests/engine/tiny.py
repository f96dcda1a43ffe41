"""Tiny random models made by transformers: their own oracle, and the tensors that the engine reads."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ftd.kernels.quant import ExpertBank, QuantMatrix
from tests.engine import moe

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 160,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}

CASES: dict[str, dict[str, Any]] = {
    "llama": {"rope_theta": 10000.0},
    "llama-untied-biased": {"rope_theta": 10000.0, "tie_word_embeddings": False, "attention_bias": True},
    "llama-llama3-rope": {
        "rope_theta": 10000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "mistral": {"rope_theta": 10000.0, "sliding_window": 12, "head_dim": 16},
    "qwen2": {"rope_theta": 1000000.0},
    "gemma3_text": {
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        "sliding_window": 12,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "query_pre_attn_scalar": 24,
        "hidden_act": "gelu_pytorch_tanh",
        "head_dim": 32,
    },
    "qwen3": {"rope_theta": 1000000.0, "head_dim": 32, "tie_word_embeddings": False},
}

LATENT: dict[str, Any] = {
    "rope_theta": 10000.0,
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "tie_word_embeddings": False,
}

# Read by the importer alone: the engine knows them by another name
IMPORTED_CASES: dict[str, dict[str, Any]] = {
    "glm_moe_dsa": {
        **LATENT,
        "num_hidden_layers": 4,
        "q_lora_rank": 64,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.6,
        "index_n_heads": 16,
        "index_head_dim": 16,
        "index_topk": 20,
        "indexer_types": ["full", "shared", "full", "full"],
    },
    "glm4_moe_lite": {
        **LATENT,
        "q_lora_rank": 64,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.8,
        "norm_topk_prob": True,
    },
}

MOE_CASES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {
        "rope_theta": 1000000.0,
        "head_dim": 32,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [1],
    },
    "mixtral": {"rope_theta": 10000.0, "num_local_experts": 4, "num_experts_per_tok": 2},
    "olmoe": {
        "rope_theta": 10000.0,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "norm_topk_prob": False,
        "tie_word_embeddings": False,
    },
    "granitemoe": {
        "rope_theta": 10000.0,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.3,
        "residual_multiplier": 0.4,
        "logits_scaling": 2.5,
    },
    "gpt_oss": {
        "rope_theta": 150000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 64,
        },
        "head_dim": 32,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": 12,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "swiglu_limit": 0.5,
        "attention_bias": True,
        "tie_word_embeddings": False,
    },
    "qwen2_moe": {
        "rope_theta": 1000000.0,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 48,
        "norm_topk_prob": False,
    },
    "deepseek_v3": {
        **LATENT,
        "q_lora_rank": 64,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 1.6,
        "norm_topk_prob": True,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 0.8,
            "original_max_position_embeddings": 64,
        },
    },
    "deepseek_v32": {
        **LATENT,
        "q_lora_rank": 64,
        "n_group": 4,
        "topk_group": 2,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.6,
        "index_n_heads": 16,
        "index_head_dim": 16,
        "index_topk": 20,
    },
    "deepseek_v2": {
        **LATENT,
        "q_lora_rank": None,
        "n_group": 4,
        "topk_group": 2,
        "topk_method": "group_limited_greedy",
        "routed_scaling_factor": 1.5,
        "norm_topk_prob": False,
    },
    "deepseek_v2-greedy": {
        **LATENT,
        "q_lora_rank": 64,
        "topk_method": "greedy",
        "norm_topk_prob": False,
    },
    "glm4_moe": {
        "rope_theta": 10000.0,
        "rope_scaling": {"rope_type": "default", "partial_rotary_factor": 0.5},
        "head_dim": 32,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "n_shared_experts": 2,
        "n_group": 4,
        "topk_group": 2,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 1.7,
        "norm_topk_prob": True,
        "use_qk_norm": True,
        "attention_bias": True,
    },
}


@dataclass(frozen=True)
class Tiny:
    """A random model: the oracle, and what an FTW config and its tensors would hold."""

    architecture: str
    hyperparameters: dict[str, Any]
    tensors: dict[str, QuantMatrix]
    oracle: Any
    banks: tuple[ExpertBank, ...] = ()

    def logits(self, ids: list[int]) -> NDArray[np.float32]:
        """Return transformers' float32 logits [S, V] of ``ids`` in one pass."""
        import torch

        with torch.no_grad():
            return self.oracle(torch.tensor([ids])).logits[0].numpy()

    def hidden(self, ids: list[int]) -> NDArray[np.float32]:
        """Return transformers' hidden states [S, D] of ``ids`` after the last norm."""
        import torch

        with torch.no_grad():
            return self.oracle.model(torch.tensor([ids])).last_hidden_state[0].numpy()


def matrix(values: NDArray[np.float32]) -> QuantMatrix:
    """Return ``values`` [N, K] or [K] as an f32 QuantMatrix."""
    codes = np.ascontiguousarray(np.atleast_2d(values), dtype="<f4")
    return QuantMatrix("f32", codes.shape, (codes,))


def q8_0(values: NDArray[np.float32]) -> QuantMatrix:
    """Return ``values`` [N, K] rounded to q8_0: 255 levels in each block of 32."""
    rows, columns = values.shape
    blocks = values.reshape(rows, -1, 32)
    scales = (np.abs(blocks).max(axis=2) / 127).astype("<f2")
    codes = np.rint(blocks / scales.astype(np.float32)[:, :, None]).astype(np.int8).reshape(rows, columns)
    return QuantMatrix("q8_0", (rows, columns), (codes, scales))


def quantized(model: Tiny, experts: Callable[[NDArray[np.float32]], QuantMatrix] = q8_0) -> Tiny:
    """Round every matrix of ``model`` to q8_0, those of experts by ``experts``, in its oracle alike.

    Routers stay as they are.
    """
    import torch

    tensors = dict(model.tensors)
    state = model.oracle.state_dict()
    for name, tensor in model.tensors.items():
        if tensor.shape[0] > 1 and name in state and "mlp.gate" not in name:
            tensors[name] = rounded = q8_0(tensor.planes[0].astype(np.float32))
            codes, scales = rounded.planes
            exact = codes.astype(np.float32) * np.repeat(scales.astype(np.float32), 32, axis=1)
            state[name].copy_(torch.from_numpy(exact))
    banks = moe.requantized(model.architecture, model.oracle, model.banks, experts)
    return Tiny(model.architecture, model.hyperparameters, tensors, model.oracle, banks)


def make(case: str, seed: int = 1, **changes: Any) -> Tiny:
    """Build the random model of ``CASES[case]`` or ``MOE_CASES[case]``, with ``changes`` to its config."""
    import torch
    import transformers

    architecture = case.partition("-")[0]
    values = SIZES | (CASES | MOE_CASES | IMPORTED_CASES)[case] | changes
    theirs = {key: value for key, value in values.items() if not key.startswith("rope_")}
    theirs["rope_parameters"] = {"rope_type": "default", "rope_theta": values["rope_theta"]}
    theirs["rope_parameters"] |= values.get("rope_scaling") or {}
    is_gemma = architecture.startswith("gemma")
    if is_gemma:
        local = {"rope_type": "default", "rope_theta": values["rope_local_base_freq"]}
        theirs["rope_parameters"] = {"full_attention": theirs["rope_parameters"], "sliding_attention": local}
        theirs["hidden_activation"] = theirs.pop("hidden_act")
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = transformers.AutoConfig.for_model(architecture, **theirs)
        oracle = (
            transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
        )
    for module in oracle.modules():
        # Older transformers hold gpt-oss' limit as a constant
        if "swiglu_limit" in values and hasattr(module, "limit"):
            module.limit = values["swiglu_limit"]
    with torch.no_grad():
        for name, parameter in oracle.named_parameters():
            # Weights of size one in the norms and zero in the biases would hide that they are used.
            spread = 0.2 if name.endswith("bias") or "norm" in name else 0.1
            parameter.normal_(1.0 if "norm" in name and not is_gemma else 0.0, spread)
        for name, buffer in oracle.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.normal_(0.0, 0.1)
    state = oracle.state_dict()
    if values["tie_word_embeddings"]:
        state.pop("lm_head.weight", None)
    # Gemma's norms multiply by one plus their weight; FTW holds the sum.
    added = {name: 1.0 for name in state if is_gemma and "norm" in name}
    banks = moe.take_banks(architecture, state)
    tensors = {
        moe.our_name(name): matrix(tensor.numpy() + added.get(name, 0.0)) for name, tensor in state.items()
    }
    return Tiny(architecture, values, tensors, oracle, banks)
