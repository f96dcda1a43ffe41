"""Qwen3-Next and Qwen3.5 in GGUF files of Ollama's library, told in llama.cpp's words.

Ollama counts key and value heads a layer, 0 in recurrent ones, and has the tensors of pictures and of
drafting (``mtp.…``) in the same file. Value heads are tiled unless the file says otherwise.
"""

from collections.abc import Mapping

import numpy as np

from ftd.ftw.gguf import Value

ARCHITECTURES = ("qwen3next", "qwen35", "qwen35moe")
DRAFTING = "mtp."


def translated(metadata: Mapping[str, Value]) -> dict[str, Value]:
    """Return the metadata of a model with recurrent layers in llama.cpp's words."""
    found, architecture = dict(metadata), metadata["general.architecture"]
    key = f"{architecture}.attention.head_count_kv"
    heads = metadata.get(key)
    if isinstance(heads, np.ndarray) and heads.dtype.kind in "iu":
        found[key] = heads[heads != 0]
        found.setdefault(f"{architecture}.attention.recurrent_layers", heads == 0)
    inner = metadata.get(f"{architecture}.feed_forward_length")
    if isinstance(inner, int) and inner == 0:  # experts in all layers
        del found[f"{architecture}.feed_forward_length"]
    if f"{architecture}.norm_top_k_prob" in metadata:
        found.setdefault(f"{architecture}.expert_weights_norm", metadata[f"{architecture}.norm_top_k_prob"])
    return found
