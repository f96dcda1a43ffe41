"""Hugging Face checkpoints put together byte by byte after the description of the format, not by ftd."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# numpy has no fp8: a byte without a meaning stands for it
FP8 = np.dtype("V1")
DTYPES = {"float32": "F32", "float16": "F16", "uint16": "BF16", "uint8": "U8", str(FP8): "F8_E4M3"}
E, D, F, V, C, H, G = 4, 64, 32, 128, 16, 4, 2

TOKENIZER: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [
        {
            "id": index,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for index, text in enumerate(("<s>", "<|im_start|>", "<|im_end|>"))
    ],
    "normalizer": None,
    "pre_tokenizer": {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    },
    "post_processor": None,
    "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    "model": {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": {"<s>": 0, "<|im_start|>": 1, "<|im_end|>": 2, "a": 3, "b": 4, "ab": 5},
        "merges": [["a", "b"]],
    },
}


def header_of(header: Any, data: bytes = b"") -> bytes:
    """Return a file with ``header`` as JSON (or as it is, if bytes) and ``data``."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def safetensors(tensors: dict[str, NDArray[Any]]) -> bytes:
    """Return a file with ``tensors``; u16 arrays are bf16."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, array in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {
            "dtype": DTYPES[str(array.dtype)],
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    return header_of(header, data)


def bf16(random: np.random.Generator, *shape: int) -> NDArray[np.uint16]:
    """Return random bf16 numbers as u16."""
    return (random.normal(size=shape).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def attention(random: np.random.Generator, layer: int) -> dict[str, NDArray[Any]]:
    """Return what a layer has outside its MLP."""
    prefix = f"model.layers.{layer}."
    return {
        f"{prefix}input_layernorm.weight": bf16(random, D),
        f"{prefix}post_attention_layernorm.weight": bf16(random, D),
        f"{prefix}self_attn.q_proj.weight": bf16(random, H * C, D),
        f"{prefix}self_attn.k_proj.weight": bf16(random, G * C, D),
        f"{prefix}self_attn.v_proj.weight": bf16(random, G * C, D),
        f"{prefix}self_attn.o_proj.weight": bf16(random, D, H * C),
    }


def outer(random: np.random.Generator) -> dict[str, NDArray[Any]]:
    """Return what lies outside the layers."""
    return {"model.embed_tokens.weight": bf16(random, V, D), "model.norm.weight": bf16(random, D)}


def config(model_type: str, **more: Any) -> dict[str, Any]:
    """Return a config.json of one layer."""
    return {
        "model_type": model_type,
        "hidden_size": D,
        "intermediate_size": F,
        "num_hidden_layers": 1,
        "num_attention_heads": H,
        "num_key_value_heads": G,
        "head_dim": C,
        "vocab_size": V,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "eos_token_id": 2,
        **more,
    }


def llama() -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return config and tensors of a dense model."""
    random = np.random.default_rng(0)
    tensors = outer(random) | attention(random, 0)
    for name, shape in (("gate", (F, D)), ("up", (F, D)), ("down", (D, F))):
        tensors[f"model.layers.0.mlp.{name}_proj.weight"] = bf16(random, *shape)
    return config("llama"), tensors


def mixtral() -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return config and tensors of a model with a tensor an expert."""
    random = np.random.default_rng(1)
    tensors = outer(random) | attention(random, 0)
    prefix = "model.layers.0.block_sparse_moe"
    tensors[f"{prefix}.gate.weight"] = bf16(random, E, D)
    for expert in range(E):
        for name, shape in (("w1", (F, D)), ("w2", (D, F)), ("w3", (F, D))):
            tensors[f"{prefix}.experts.{expert}.{name}.weight"] = bf16(random, *shape)
    return config("mixtral", num_local_experts=E, num_experts_per_tok=2), tensors


def gpt_oss() -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return config and tensors of a model with mxfp4 experts, biases and sinks."""
    random = np.random.default_rng(2)
    tensors = outer(random) | attention(random, 0)
    prefix = "model.layers.0."
    for name, rows in (("q", H * C), ("k", G * C), ("v", G * C), ("o", D)):
        tensors[f"{prefix}self_attn.{name}_proj.bias"] = bf16(random, rows)
    tensors[f"{prefix}self_attn.sinks"] = bf16(random, H)
    tensors[f"{prefix}mlp.router.weight"] = bf16(random, E, D)
    tensors[f"{prefix}mlp.router.bias"] = bf16(random, E)
    for name, rows, columns in (("gate_up", 2 * F, D), ("down", D, F)):
        stem = f"{prefix}mlp.experts.{name}_proj"
        tensors[f"{stem}_blocks"] = random.integers(0, 256, (E, rows, columns // 32, 16), np.uint8)
        tensors[f"{stem}_scales"] = random.integers(100, 140, (E, rows, columns // 32), np.uint8)
        tensors[f"{stem}_bias"] = bf16(random, E, rows)
    more = {
        "num_local_experts": E,
        "num_experts_per_tok": 2,
        "sliding_window": 8,
        "layer_types": ["sliding_attention"],
        "quantization_config": {"quant_method": "mxfp4"},
    }
    return config("gpt_oss", **more), tensors


def save(
    folder: Path, config: dict[str, Any], tensors: dict[str, NDArray[Any]], shards: int = 1, **side: Any
) -> dict[str, Path]:
    """Write a checkpoint; return its files by name. side: further files by stem, JSON or text."""
    folder.mkdir(exist_ok=True)
    names = list(tensors)
    if shards == 1:
        (folder / "model.safetensors").write_bytes(safetensors(tensors))
    else:
        weight_map: dict[str, str] = {}
        for number in range(shards):
            name = f"model-{number + 1:05}-of-{shards:05}.safetensors"
            part = names[number::shards]
            (folder / name).write_bytes(safetensors({key: tensors[key] for key in part}))
            weight_map |= dict.fromkeys(part, name)
        index = {"metadata": {}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for name, value in {"config": config, "tokenizer": TOKENIZER, **side}.items():
        if isinstance(value, str):
            (folder / f"{name}.jinja").write_text(value)
        elif value is not None:
            (folder / f"{name}.json").write_text(json.dumps(value))
    return {path.name: path for path in folder.iterdir()}
