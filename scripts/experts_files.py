"""Random models as files of other programs: GGUF for llama.cpp, safetensors for FreeToken.

The values are those that the engine gets, bit for bit; the GGUF has no vocabulary, the folder a tokenizer
whose words w0, w1, … are ids.
"""

import json
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from ftd.engine import model_config
from ftd.engine.kv_pool import KvPool
from ftd.engine.locality import Locality
from ftd.engine.models import families
from ftd.engine.models.blocks import Blocks
from ftd.engine.synthetic import SHAPES, Synthetic, SyntheticWeights, _Counter
from ftd.kernels.cpu import usable_cores
from ftd.kernels.quant import ExpertBank, QuantMatrix

ALIGNMENT = 32
GGML = {"f32": 0, "q4_0": 2, "bf16": 30}
DENSE = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate": "ffn_gate_inp",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
# ggml's names of the architectures that it gets
ARCHITECTURES = {"llama": "llama", "qwen3_moe": "qwen3moe"}


class Kept(SyntheticWeights):
    """The same weights as an engine gets, kept by name."""

    def __init__(self, format_name: str, locality: Locality | None) -> None:
        super().__init__(format_name, 0, locality=locality)
        self.matrices: dict[str, QuantMatrix] = {}
        self.kept_banks: list[ExpertBank] = []

    def matrix(self, name: str, rows: int, columns: int) -> QuantMatrix:
        """Return and keep a matrix."""
        self.matrices[name] = super().matrix(name, rows, columns)
        return self.matrices[name]

    def bank(self, layer: int, num_experts: int, hidden_size: int, inner_size: int) -> ExpertBank:
        """Return and keep a bank."""
        self.kept_banks.append(super().bank(layer, num_experts, hidden_size, inner_size))
        return self.kept_banks[-1]


def weights_of(
    shape: str, format_name: str, layers: int, locality: Locality | None, source: Synthetic
) -> Kept:
    """Return all weights of a model; its banks are those of ``source``."""
    architecture, hyperparameters = SHAPES[shape]
    model = model_config.make(architecture, {**hyperparameters, "num_hidden_layers": layers})
    kept = Kept(format_name, locality)
    kept.own_banks = source._own_banks
    families.get(architecture)(Blocks(model, _Counter(), kept, KvPool(model, 1, 1, "fast")))
    return kept


# ---- GGUF


def blocks_of(matrix: QuantMatrix) -> np.ndarray:
    """Return a matrix as ggml lays it out, as bytes."""
    if matrix.format != "q4_0":
        return np.ascontiguousarray(matrix.planes[0]).view(np.uint8).reshape(-1)
    codes, scales = matrix.planes
    rows, groups = scales.shape
    blocks = np.empty((rows, groups, 18), np.uint8)
    blocks[..., :2] = np.ascontiguousarray(scales).view(np.uint8).reshape(rows, groups, 2)
    blocks[..., 2:] = codes.reshape(rows, groups, 16)
    return blocks.reshape(-1)


def text(value: str) -> bytes:
    """Return a string of GGUF."""
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def field(key: str, value: Any) -> bytes:
    """Return a key and its value."""
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    if isinstance(value, float):
        return text(key) + struct.pack("<If", 6, value)
    return text(key) + struct.pack("<II", 4, value)


def gguf_fields(architecture: str, hyperparameters: dict[str, Any], layers: int) -> dict[str, Any]:
    """Return the metadata of a file without a vocabulary."""
    its = hyperparameters
    head_dim = its.get("head_dim", its["hidden_size"] // its["num_attention_heads"])
    arch = {
        "block_count": layers,
        "context_length": its["max_position_embeddings"],
        "embedding_length": its["hidden_size"],
        "feed_forward_length": its["intermediate_size"],
        "attention.head_count": its["num_attention_heads"],
        "attention.head_count_kv": its["num_key_value_heads"],
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "rope.dimension_count": head_dim,
        "attention.layer_norm_rms_epsilon": float(its["rms_norm_eps"]),
        "rope.freq_base": float(its["rope_theta"]),
        "vocab_size": its["vocab_size"],
    }
    if "num_experts" in its:
        arch |= {
            "expert_feed_forward_length": its["moe_intermediate_size"],
            "expert_count": its["num_experts"],
            "expert_used_count": its["num_experts_per_tok"],
        }
    kind = ARCHITECTURES[architecture]
    named = {f"{kind}.{key}": value for key, value in arch.items()}
    return {"general.architecture": kind, **named, "tokenizer.ggml.model": "none"}


def gguf_name(name: str) -> str:
    """Return ggml's name of a dense tensor."""
    special = {"model.embed_tokens": "token_embd", "lm_head": "output", "model.norm": "output_norm"}
    stem = name.removesuffix(".weight")
    if stem in special:
        return f"{special[stem]}.weight"
    layer, part = stem.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{DENSE[part]}.weight"


def expert_parts(bank: ExpertBank) -> Iterator[tuple[str, tuple[int, int], list[np.ndarray]]]:
    """Yield name, shape and the blocks of every expert of a bank."""
    inner, hidden = bank.matrices["gate_up"].shape[0] // 2, bank.matrices["gate_up"].shape[1]
    found: dict[str, list[np.ndarray]] = {"gate": [], "up": [], "down": []}
    for expert in range(len(bank.records)):
        both = blocks_of(bank.matrices["gate_up"].expert(expert))
        found["gate"].append(both[: len(both) // 2])
        found["up"].append(both[len(both) // 2 :])
        found["down"].append(blocks_of(bank.matrices["down"].expert(expert)))
    yield "gate", (inner, hidden), found["gate"]
    yield "up", (inner, hidden), found["up"]
    yield "down", (hidden, inner), found["down"]


def write_gguf(path: Path, shape: str, layers: int, kept: Kept) -> None:
    """Write a model; every layer's experts are those of the first, rolled, so blocks are made once."""
    fields = gguf_fields(*SHAPES[shape], layers)
    base = list(expert_parts(kept.kept_banks[0])) if kept.kept_banks else []
    infos, place, parts = [], 0, []

    def add(name: str, dims: tuple[int, ...], kind: str, blocks: list[np.ndarray]) -> None:
        nonlocal place
        head = text(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *reversed(dims))
        infos.append(head + struct.pack("<IQ", GGML[kind], place))
        size = sum(len(block) for block in blocks)
        parts.append((blocks, -size % ALIGNMENT))
        place += size + -size % ALIGNMENT

    for name, matrix in kept.matrices.items():
        dims = matrix.shape[1:] if matrix.shape[0] == 1 else matrix.shape
        add(gguf_name(name), dims, matrix.format, [blocks_of(matrix)])
    for layer in range(layers):
        for role, dims, blocks in base:
            shift = 5 * layer % len(blocks)
            rolled = blocks[shift:] + blocks[:shift]
            kind = kept.kept_banks[0].matrices[role if role == "down" else "gate_up"].format
            add(f"blk.{layer}.ffn_{role}_exps.weight", (len(blocks), *dims), kind, rolled)
    with path.open("wb", buffering=0) as file:
        head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(fields))
        head += b"".join(field(key, value) for key, value in fields.items()) + b"".join(infos)
        file.write(head + bytes(-len(head) % ALIGNMENT))
        for blocks, padding in parts:
            for block in blocks:
                file.write(block.data)
            file.write(bytes(padding))


# ---- safetensors


def write_safetensors(
    path: Path, tensors: list[tuple[str, tuple[int, ...], list[np.ndarray]]], kind: str
) -> None:
    """Write tensors one after the other."""
    head, place = {}, 0
    for name, dims, blocks in tensors:
        size = sum(block.nbytes for block in blocks)
        head[name] = {"dtype": kind, "shape": list(dims), "data_offsets": [place, place + size]}
        place += size
    data = json.dumps(head).encode()
    data += b" " * (-(len(data) + 8) % 4096)
    with path.open("wb", buffering=0) as file:
        file.write(struct.pack("<Q", len(data)) + data)
        for _, _, blocks in tensors:
            for block in blocks:
                file.write(np.ascontiguousarray(block).reshape(-1).view(np.uint8).data)


def bf16(matrix: QuantMatrix) -> np.ndarray:
    """Return a matrix of bf16 or f32 as bf16."""
    values = matrix.planes[0]
    if matrix.format == "bf16":
        return values
    return (np.ascontiguousarray(values).view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def write_folder(folder: Path, shape: str, layers: int, kept: Kept) -> None:
    """Write a BF16 model as Hugging Face has it, with a tokenizer of words."""
    folder.mkdir(parents=True, exist_ok=True)
    dense = [
        (name, matrix.shape[1:] if matrix.shape[0] == 1 else matrix.shape, [bf16(matrix)])
        for name, matrix in kept.matrices.items()
    ]
    places = {name: "dense.safetensors" for name, _, _ in dense}
    files = [("dense.safetensors", dense)]
    for layer, bank in enumerate(kept.kept_banks):
        tensors = []
        for expert in range(len(bank.records)):
            gate_up, down = (bank.matrices[role].expert(expert).planes[0] for role in ("gate_up", "down"))
            for role, rows in zip(("gate", "up", "down"), (*np.split(gate_up, 2), down), strict=True):
                name = f"model.layers.{layer}.mlp.experts.{expert}.{role}_proj.weight"
                tensors.append((name, rows.shape, [rows]))
        files.append((f"experts-{layer:02}.safetensors", tensors))
        places |= {name: files[-1][0] for name, _, _ in tensors}
    with ThreadPoolExecutor(len(usable_cores())) as threads:
        list(threads.map(lambda each: write_safetensors(folder / each[0], each[1], "BF16"), files))
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    config = {
        **SHAPES[shape][1],
        "num_hidden_layers": layers,
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "attention_bias": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder, config["vocab_size"])


def write_tokenizer(folder: Path, vocab: int) -> None:
    """Write a tokenizer whose words w0, w1, … are ids; the last id ends a text."""
    end = f"w{vocab - 1}"
    model = {"type": "WordLevel", "vocab": {f"w{i}": i for i in range(vocab)}, "unk_token": "w0"}
    special = {"id": vocab - 1, "content": end, "special": True}
    special |= dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [special],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": model,
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    options = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end, "chat_template": "{{ '' }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
