"""Which function records which architecture; a new family is one file and one row here."""

import importlib
from collections.abc import Callable

from ftd.engine.models.blocks import Blocks, Outputs
from ftd.errors import Unsupported

# architecture -> its module, imported when a model of it is loaded
FAMILIES: dict[str, str] = {
    "bert": "bert",
    "deepseek_v2": "deepseek",
    "deepseek_v3": "deepseek",
    "deepseek_v32": "deepseek",
    "gemma3_text": "gemma3",
    "glm4_moe": "glm4_moe",
    "gpt_oss": "gpt_oss",
    "granitemoe": "mixtral",
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "mixtral",
    "nomic_bert": "bert",
    "olmoe": "olmoe",
    "qwen2": "qwen2",
    "qwen2_moe": "qwen2_moe",
    "qwen3": "qwen3",
    "qwen3_5": "qwen3_5",
    "qwen3_5_moe": "qwen3_next",
    "qwen3_moe": "qwen3_moe",
    "qwen3_next": "qwen3_next",
}


def get(architecture: str) -> Callable[[Blocks], Outputs]:
    """Return the function that records ``architecture``; Unsupported if there is none."""
    name = FAMILIES.get(architecture)
    if name is None:
        raise Unsupported(
            f"model architecture is not supported: {architecture}", f"use one of {' '.join(sorted(FAMILIES))}"
        )
    record: Callable[[Blocks], Outputs] = importlib.import_module(f"ftd.engine.models.{name}").record
    return record
