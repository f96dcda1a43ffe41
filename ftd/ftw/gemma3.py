"""Gemma 3 in GGUF files: llama.cpp's converter and Ollama's speak differently, and here is one language.

Ollama's files have the pictures' tensors too (``v.…``, ``mm.…``), and a token of pictures behind those that
are embedded. They leave out what all models share, also that no blank is put before a text. Its first
converter wrote a soft cap that no Gemma 3 has, and none tells how positions are scaled from 4B on.
"""

from collections.abc import Mapping

import numpy as np

from ftd.errors import InvalidGguf
from ftd.ftw.format import Json
from ftd.ftw.gguf import Value
from ftd.ftw.gguf_parts import MAX_LAYERS, Settings

PICTURES = ("v.", "mm.")
_ROPE_FACTOR = 8.0
_SCALED_LAYERS = (34, 48, 62)  # 4B, 12B, 27B
# What a file may leave out -> Ollama's name of it, and what all models have
_OF_TOKENS = ("tokens", "scores", "token_type")
_COMMON = {
    "rope.freq_base": ("rope.global.freq_base", 1e6),
    "rope.freq_base_swa": ("rope.local.freq_base", 1e4),
    "attention.layer_norm_rms_epsilon": ("", 1e-6),
    "attention.key_length": ("", 256),
}


def has_pictures(metadata: Mapping[str, Value]) -> bool:
    """Say whether a file also holds what reads pictures, which ftd leaves out."""
    return f"{metadata['general.architecture']}.vision.block_count" in metadata


def translated(metadata: Mapping[str, Value]) -> dict[str, Value]:
    """Return the metadata of a Gemma 3 in llama.cpp's words."""
    found = dict(metadata)
    for name, (other, common) in _COMMON.items():
        found.setdefault(f"gemma3.{name}", metadata.get(f"gemma3.{other}", common))
    if "gemma3.rope.global.freq_base" in metadata:  # of the first converter
        found.pop("gemma3.final_logit_softcapping", None)
    found.setdefault("tokenizer.ggml.add_space_prefix", False)
    layers = metadata.get("gemma3.block_count")
    if "gemma3.vision.block_count" in metadata and isinstance(layers, int) and layers in _SCALED_LAYERS:
        found.setdefault("gemma3.rope.scaling.factor", _ROPE_FACTOR)
    return found


def embedded(metadata: Mapping[str, Value], rows: int) -> dict[str, Value]:
    """Return the metadata without the tokens of pictures that follow ``rows`` embedded ones."""
    found = dict(metadata)
    for name in _OF_TOKENS:
        values = found.get(f"tokenizer.ggml.{name}")
        if isinstance(values, list | np.ndarray):
            found[f"tokenizer.ggml.{name}"] = values[:rows]
    return found


def settings(settings: Settings) -> dict[str, Json]:
    """Return what is Gemma 3's own."""
    layers = settings.integer("block_count", high=MAX_LAYERS)
    hidden, heads = settings.integer("embedding_length"), settings.integer("attention.head_count")
    return {
        "hidden_act": "gelu_pytorch_tanh",
        "sliding_window": settings.integer("attention.sliding_window"),
        "layer_types": [
            "sliding_attention" if local else "full_attention" for local in _local(settings, layers)
        ],
        # The file does not say it; the 27B model alone scales by hidden / heads.
        "query_pre_attn_scalar": hidden // heads
        if layers == 62
        else settings.integer("attention.key_length"),
        "rope_local_base_freq": settings.number("rope.freq_base_swa"),
    }


def _local(settings: Settings, layers: int) -> list[bool]:
    """Return which layers have a window: all but every so many, or as listed."""
    key = "attention.sliding_window_pattern"
    if not isinstance(settings.get(key, None), np.ndarray):
        pattern = settings.integer(key, 6)
        return [(layer + 1) % pattern != 0 for layer in range(layers)]
    listed = settings.flags(key) or []
    if len(listed) < layers:
        raise InvalidGguf(f"gemma3.{key} has {len(listed)} entries for {layers} layers")
    return listed[:layers]
