"""Which function records which architecture; a new family is one file and one row here."""

from collections.abc import Callable

from ftd.engine.models import (
    bert,
    deepseek,
    gemma3,
    glm4_moe,
    gpt_oss,
    llama,
    mixtral,
    olmoe,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_5,
    qwen3_moe,
    qwen3_next,
)
from ftd.engine.models.blocks import Blocks, Outputs
from ftd.errors import Unsupported

FAMILIES: dict[str, Callable[[Blocks], Outputs]] = {
    "bert": bert.record,
    "deepseek_v2": deepseek.record,
    "deepseek_v3": deepseek.record,
    "deepseek_v32": deepseek.record,
    "gemma3_text": gemma3.record,
    "glm4_moe": glm4_moe.record,
    "gpt_oss": gpt_oss.record,
    "granitemoe": mixtral.record,
    "llama": llama.record,
    "mistral": llama.record,
    "mixtral": mixtral.record,
    "nomic_bert": bert.record,
    "olmoe": olmoe.record,
    "qwen2": qwen2.record,
    "qwen2_moe": qwen2_moe.record,
    "qwen3": qwen3.record,
    "qwen3_5": qwen3_5.record,
    "qwen3_5_moe": qwen3_next.record,
    "qwen3_moe": qwen3_moe.record,
    "qwen3_next": qwen3_next.record,
}


def get(architecture: str) -> Callable[[Blocks], Outputs]:
    """Return the function that records ``architecture``; Unsupported if there is none."""
    try:
        return FAMILIES[architecture]
    except KeyError:
        raise Unsupported(
            f"model architecture is not supported: {architecture}", f"use one of {' '.join(sorted(FAMILIES))}"
        ) from None
