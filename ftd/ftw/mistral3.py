"""Mistral Small 3.1 and later in GGUF files: a llama whose vocabulary is Mistral's newer one.

Ollama's files call yarn's settings otherwise, do not name the pre-tokenizer, and have the pictures' tensors
too (``v.…``, ``mm.…``). Ministral 3 also scales queries by their position, which ftd does not do.
"""

from collections.abc import Mapping

import numpy as np

from ftd.errors import Unsupported
from ftd.ftw.gguf import Value
from ftd.ftw.gguf_tokens import names_pre_tokenizer

# Ollama's name -> llama.cpp's
_NAMES = {
    "rope.scaling.beta_fast": "rope.scaling.yarn_beta_fast",
    "rope.scaling.beta_slow": "rope.scaling.yarn_beta_slow",
    "rope.scaling.mscale_all_dim": "rope.scaling.yarn_log_multiplier",
    "rope.scaling_beta": "attention.temperature_scale",
}


def translated(metadata: Mapping[str, Value]) -> dict[str, Value]:
    """Return the metadata of a mistral3 file in llama.cpp's words; raise Unsupported for Ministral 3."""
    found = dict(metadata)
    for other, name in _NAMES.items():
        if f"mistral3.{other}" in metadata:
            found.setdefault(f"mistral3.{name}", metadata[f"mistral3.{other}"])
    scale = found.get("mistral3.attention.temperature_scale", 0.0)
    if isinstance(scale, np.ndarray) or scale != 0.0:
        raise Unsupported(f"mistral3.attention.temperature_scale is not supported: {scale!r:.50}")
    if not names_pre_tokenizer(metadata):
        found["tokenizer.ggml.pre"] = "tekken"
    return found
