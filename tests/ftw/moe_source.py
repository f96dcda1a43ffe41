"""GGUF files with experts of every family, written by the ``gguf`` package from random blocks."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import gguf_bytes
import numpy as np
from numpy.typing import NDArray

E, D, F, S, V, C, H, G = 4, 128, 64, 96, 32, 32, 4, 2
HIDDEN = {"E": E, "D": D, "F": F, "S": S, "V": V, "C": C, "H": H, "Q": H * C, "W": G * C}
COMMON = {
    "attn_norm.weight": ("input_layernorm.weight", "D"),
    "attn_q.weight": ("self_attn.q_proj.weight", "QD"),
    "attn_k.weight": ("self_attn.k_proj.weight", "WD"),
    "attn_v.weight": ("self_attn.v_proj.weight", "WD"),
    "attn_output.weight": ("self_attn.o_proj.weight", "DQ"),
    "ffn_norm.weight": ("post_attention_layernorm.weight", "D"),
    "ffn_gate_inp.weight": ("mlp.gate.weight", "ED"),
}
BIASES = {
    f"attn_{part}.bias": (f"self_attn.{part}_proj.bias", row) for part, row in zip("qkv", "QWW", strict=True)
}
SHARED = {
    "ffn_gate_shexp.weight": ("mlp.shared_expert.gate_proj.weight", "SD"),
    "ffn_up_shexp.weight": ("mlp.shared_expert.up_proj.weight", "SD"),
    "ffn_down_shexp.weight": ("mlp.shared_expert.down_proj.weight", "DS"),
}
# architecture -> (model_type, tensors of a layer by GGUF name, settings that the file has besides the common)
ARCHITECTURES: dict[str, tuple[str, dict[str, tuple[str, str]], dict[str, Any]]] = {
    "llama": ("mixtral", COMMON, {"feed_forward_length": F}),
    "qwen3moe": (
        "qwen3_moe",
        COMMON
        | {
            "attn_q_norm.weight": ("self_attn.q_norm.weight", "C"),
            "attn_k_norm.weight": ("self_attn.k_norm.weight", "C"),
        },
        {"feed_forward_length": 3 * F, "expert_feed_forward_length": F},
    ),
    "qwen2moe": (
        "qwen2_moe",
        COMMON | BIASES | SHARED | {"ffn_gate_inp_shexp.weight": ("mlp.shared_expert_gate.weight", "D")},
        {
            "feed_forward_length": 3 * F,
            "expert_feed_forward_length": F,
            "expert_shared_feed_forward_length": S,
        },
    ),
    "olmoe": (
        "olmoe",
        COMMON
        | {
            "attn_q_norm.weight": ("self_attn.q_norm.weight", "Q"),
            "attn_k_norm.weight": ("self_attn.k_norm.weight", "W"),
        },
        {"feed_forward_length": F},
    ),
    "granitemoe": (
        "granitemoe",
        COMMON | SHARED,
        {
            "feed_forward_length": F,
            "expert_shared_feed_forward_length": S,
            "attention.scale": 0.015625,
            "embedding_scale": 12.0,
            "residual_scale": 0.25,
            "logit_scale": 6.0,
        },
    ),
    "gpt-oss": (
        "gpt_oss",
        {name: value for name, value in COMMON.items() if name != "ffn_norm.weight"}
        | BIASES
        | {
            "post_attention_norm.weight": ("post_attention_layernorm.weight", "D"),
            "attn_output.bias": ("self_attn.o_proj.bias", "D"),
            "attn_sinks.weight": ("self_attn.sinks", "H"),
            "ffn_gate_inp.bias": ("mlp.gate.bias", "E"),
        },
        {
            "expert_feed_forward_length": F,
            "attention.sliding_window": 16,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 32.0,
            "rope.scaling.original_context_length": 4096,
        },
    ),
}
EXPERTS = {"gate": "FD", "up": "FD", "down": "DF"}
GLM = {
    **{name: part for name, part in COMMON.items() if name != "ffn_norm.weight"},
    **BIASES,
    "post_attention_norm.weight": ("post_attention_layernorm.weight", "D"),
    "attn_q_norm.weight": ("self_attn.q_norm.weight", "C"),
    "attn_k_norm.weight": ("self_attn.k_norm.weight", "C"),
    "exp_probs_b.bias": ("mlp.gate.e_score_correction_bias", "E"),
    "ffn_gate_shexp.weight": ("mlp.shared_expert.gate_proj.weight", "FD"),
    "ffn_up_shexp.weight": ("mlp.shared_expert.up_proj.weight", "FD"),
    "ffn_down_shexp.weight": ("mlp.shared_expert.down_proj.weight", "DF"),
}
ARCHITECTURES["glm4moe"] = (
    "glm4_moe",
    GLM,
    {
        "feed_forward_length": 3 * F,
        "expert_feed_forward_length": F,
        "expert_shared_count": 1,
        "expert_gating_func": 2,
        "expert_weights_scale": 1.5,
        "expert_group_count": 2,
        "expert_group_used_count": 1,
        "rope.dimension_count": C // 2,
    },
)
INTERLEAVED = ("llama", "granitemoe")


@dataclass
class Source:
    """A GGUF file to be: raw bytes and type of each tensor by name, and the settings."""

    architecture: str
    kinds: dict[str, str] = field(default_factory=dict)
    raw: dict[str, tuple[NDArray[np.uint8], str]] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    blocks: int = 2

    def fill(self) -> "Source":
        """Make random tensors; experts are of ``kinds[role]``, Q4_0 where not named."""
        _, layer, more = ARCHITECTURES[self.architecture]
        self.settings = {"expert_count": E, "expert_used_count": 2, **more, **self.settings}
        random = np.random.default_rng(0)
        self._add("token_embd.weight", (V, D), "Q8_0", random)
        self._add("output_norm.weight", (D,), "F32", random)
        for index in range(2):
            for name, (_, letters) in layer.items():
                kind = "F32" if len(letters) == 1 or "gate_inp" in name else "Q4_0"
                self._add(f"blk.{index}.{name}", tuple(HIDDEN[letter] for letter in letters), kind, random)
            for role, letters in EXPERTS.items():
                shape = (E, *(HIDDEN[letter] for letter in letters))
                kind = self.kinds.get(f"{index}.{role}", self.kinds.get(role, "Q4_0"))
                self._add(f"blk.{index}.ffn_{role}_exps.weight", shape, kind, random)
                if self.architecture == "gpt-oss":
                    self._add(f"blk.{index}.ffn_{role}_exps.bias", (E, shape[1]), "F32", random)
        return self

    def _add(self, name: str, shape: tuple[int, ...], kind: str, random: np.random.Generator) -> None:
        rows = int(np.prod(shape[:-1]))
        raw = gguf_bytes.blocks(kind, rows, shape[-1], random)
        self.raw[name] = (raw.reshape(*shape[:-1], -1), kind)

    def save(self, path: Path) -> Path:
        """Write the file with the ``gguf`` package."""
        writer = gguf.GGUFWriter(path, self.architecture)
        writer.add_block_count(self.blocks)
        writer.add_context_length(128)
        writer.add_embedding_length(D)
        writer.add_head_count(H)
        writer.add_head_count_kv(G)
        writer.add_key_length(C)
        writer.add_value_length(C)
        writer.add_layer_norm_rms_eps(1e-5)
        for key, value in self.settings.items():
            add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
            add(f"{self.architecture}.{key}", value)
        for key, value in gguf_bytes.TOKENIZER.items():
            if isinstance(value, list):
                writer.add_array(key, value)
            else:
                {int: writer.add_uint32, str: writer.add_string}[type(value)](key, value)
        for name, (raw, kind) in self.raw.items():
            if kind == "F32":
                writer.add_tensor(name, raw.view(np.float32))
            else:
                writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType[kind])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def values(self, name: str) -> NDArray[np.float32]:
        """Return the values of a tensor as the ``gguf`` package reads them."""
        raw, kind = self.raw[name]
        return gguf.dequantize(raw, gguf.GGMLQuantizationType[kind]).astype(np.float32)
