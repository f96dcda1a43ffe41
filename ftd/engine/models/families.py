"""Which function records which architecture; a new family is one file and one row here."""

from collections.abc import Callable

from ftd.engine.models import gemma3, llama, qwen2, qwen3
from ftd.engine.models.blocks import Blocks, Outputs
from ftd.errors import Unsupported

FAMILIES: dict[str, Callable[[Blocks], Outputs]] = {
    "gemma3_text": gemma3.record,
    "llama": llama.record,
    "mistral": llama.record,
    "qwen2": qwen2.record,
    "qwen3": qwen3.record,
}


def get(architecture: str) -> Callable[[Blocks], Outputs]:
    """Return the function that records ``architecture``; Unsupported if there is none."""
    try:
        return FAMILIES[architecture]
    except KeyError:
        raise Unsupported(
            f"model architecture is not supported: {architecture}", f"use one of {' '.join(sorted(FAMILIES))}"
        ) from None
