"""Tiny random encoders as transformers writes them, and their weights as GGUF by the gguf package."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 160,
    "max_position_embeddings": 300,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-6,
}
CASES: dict[str, dict[str, Any]] = {
    "bert": {"hidden_act": "gelu"},
    "nomic_bert": {
        "hidden_act": "silu",
        "head_dim": 16,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
    },
}
WORDS = [chr(0x61 + index // 26) + chr(0x61 + index % 26) for index in range(155)]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
GGUF_NAMES = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "attn_output_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_mlp_layernorm": "layer_output_norm",
}


def make(architecture: str, seed: int = 3) -> Any:
    """Return transformers' model of ``CASES[architecture]``, all of whose weights matter."""
    import torch
    import transformers

    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = transformers.AutoConfig.for_model(architecture, **SIZES, **CASES[architecture])
        model = transformers.AutoModel.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_norm = "norm" in name.lower() and name.endswith("weight")
            parameter.normal_(1.0 if is_norm else 0.0, 0.2)
    return model


def hidden(model: Any, ids: list[int]) -> NDArray[np.float32]:
    """Return transformers' hidden states [S, D] of ``ids``."""
    import torch

    with torch.no_grad():
        return model(torch.tensor([ids])).last_hidden_state[0].numpy()


def tokenizer_json() -> bytes:
    """Return a WordPiece tokenizer of ``PIECES`` that frames texts, cuts and pads as published ones do."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordPiece({text: i for i, text in enumerate(PIECES)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(PIECES[:5])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)
    return tokenizer.to_str().encode()


def write_folder(model: Any, folder: Path, pooling: str = "cls_token") -> dict[str, Path]:
    """Write a sentence-transformers folder; return its files by relative name."""
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(tokenizer_json())
    (folder / "1_Pooling").mkdir()
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    listed = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in modules]
    (folder / "modules.json").write_text(json.dumps(listed))
    modes = {f"pooling_mode_{name}": name == pooling for name in ("cls_token", "mean_tokens", "lasttoken")}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 24}))
    return {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}


def write_gguf(model: Any, path: Path, pooling: int = 1, fused: bool = False) -> None:
    """Write the model as llama.cpp's converter spells it; ``fused``: q, k and v as one tensor."""
    import gguf

    architecture = model.config.model_type.replace("_", "-")
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(SIZES["max_position_embeddings"])
    writer.add_embedding_length(SIZES["hidden_size"])
    writer.add_feed_forward_length(SIZES["intermediate_size"])
    writer.add_block_count(SIZES["num_hidden_layers"])
    writer.add_head_count(SIZES["num_attention_heads"])
    writer.add_layer_norm_eps(SIZES["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType(pooling))
    if architecture == "nomic-bert":
        writer.add_rope_freq_base(1000.0)
    writer.add_tokenizer_model("bert")
    writer.add_token_list([*PIECES[:5], *("\u2581" + word for word in WORDS)])
    writer.add_token_types([3] * 5 + [1] * len(WORDS))
    for name, token in (("bos", 2), ("eos", 3), ("unknown", 1), ("pad", 0)):
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", token)
    for name, values in gguf_tensors(model, fused).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_tensors(model: Any, fused: bool) -> dict[str, NDArray[np.float32]]:
    """Return the model's tensors under GGUF's names."""
    tensors: dict[str, NDArray[np.float32]] = {}
    for name, parameter in model.state_dict().items():
        if name.startswith("pooler") or name.endswith("_ids"):
            continue
        stem, _, kind = name.rpartition(".")
        block = ""
        if "layer" in stem and "LayerNorm" not in stem.split(".")[1]:
            number, _, stem = (
                stem.removeprefix("encoder.").removeprefix("layers.").removeprefix("layer.").partition(".")
            )
            block = f"blk.{number}."
        tensors[f"{block}{GGUF_NAMES.get(stem, stem)}.{kind}"] = parameter.numpy()
    if not fused:
        names = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v"}
        for long, short in names.items():
            tensors = {name.replace(long, short): values for name, values in tensors.items()}
        return tensors
    for layer in range(SIZES["num_hidden_layers"]):
        parts = [tensors.pop(f"blk.{layer}.self_attn.{letter}_proj.weight") for letter in "qkv"]
        tensors[f"blk.{layer}.attn_qkv.weight"] = np.concatenate(parts)
    return tensors
