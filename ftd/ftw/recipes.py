"""What ``--quantize`` makes of each matrix: one format for all, or a mixture of formats by layer and role.

    q8_0 q4_0 …     this format for all but embeddings and output, which stay at q8_0
    q4_k_s q4_k_m   llama.cpp's mixtures of q4_k with q5_k, and with q6_k, for values and down projections of
    q5_k_s q5_k_m   some layers, q6_k for the output; for models of eight experts, whose attention is small
                    beside them, q8_0 for keys and values

Matrices whose rows are no whole blocks of a format take the one that llama-quantize puts in its place.
"""

from dataclasses import dataclass, replace

from ftd.errors import Unsupported
from ftd.kernels.quant import FORMATS

FORMATS_BY_NAME = ("q8_0", "q6_k", "q5_k", "q5_1", "q5_0", "q4_k", "q4_1", "q4_0", "mxfp4")
MIXTURES = {"q4_k_s": "q4_k", "q4_k_m": "q4_k", "q5_k_s": "q5_k", "q5_k_m": "q5_k"}
QUANTIZED = (*FORMATS_BY_NAME, *MIXTURES)
BLOCK = 32
KEPT = ("mlp.gate.weight", "mlp.shared_expert_gate.weight")
_SMALLER_BLOCKS = {"q6_k": "q8_0", "q5_k": "q5_1", "q4_k": "q5_0"}


@dataclass(frozen=True, slots=True)
class Recipe:
    """The format of each kind of matrix in one layer, or outside of the layers."""

    base: str
    embedding: str = "q8_0"
    head: str = "q8_0"
    key: str = ""
    value: str = ""
    output: str = ""
    down: str = ""

    def format_of(self, name: str) -> str:
        """Return the format of a matrix, by its name or an expert's role."""
        for ending, format in (
            ("embed_tokens.weight", self.embedding),
            ("lm_head.weight", self.head),
            ("self_attn.k_proj.weight", self.key),
            ("self_attn.v_proj.weight", self.value),
            ("self_attn.o_proj.weight", self.output),
            ("down_proj.weight", self.down),
        ):
            if name.endswith(ending):
                return format or self.base
        return (self.down if name == "down" else "") or self.base


def check_name(quantization: str | None) -> None:
    """Raise Unsupported for what nothing is quantised to."""
    if quantization is not None and quantization not in QUANTIZED:
        raise Unsupported(
            f"quantisation is not supported: {quantization:.40}", f"use one of {' '.join(QUANTIZED)}"
        )


def recipe(
    quantization: str | None, layer: int | None, num_layers: int, num_experts: int, tied: bool
) -> Recipe | None:
    """Return what a layer (None: what lies outside of them) is quantised to; None keeps what it is."""
    check_name(quantization)
    if quantization is None:
        return None
    if quantization not in MIXTURES:
        return Recipe(quantization)
    base = MIXTURES[quantization]
    mixture = Recipe(base, embedding="q6_k" if tied else base, head="q6_k")
    if layer is None:
        return mixture
    if quantization.endswith("_m") and _has_more_bits(layer, num_layers):
        mixture = replace(mixture, value="q6_k", down="q6_k")
    elif quantization == "q4_k_s":
        mixture = replace(
            mixture,
            value="q5_k" if layer < 4 else base,
            down="q5_k" if layer < num_layers // 8 else base,
        )
    if num_experts == 8:
        mixture = replace(mixture, key="q8_0", value="q8_0", output="q5_k")
    return mixture


def _has_more_bits(layer: int, num_layers: int) -> bool:
    """Say whether a layer is in the first or last eighth, or the third of three between."""
    first = num_layers // 8
    return layer < first or layer >= 7 * num_layers // 8 or (layer - first) % 3 == 2


def target(name: str, format: str, columns: int, recipe: Recipe | None) -> str:
    """Return the format of the float matrix ``name`` (or role of experts) after quantisation.

    Routers, which decide by small differences, and rows that are no whole blocks keep ``format``.
    """
    if recipe is None or columns % BLOCK or name.endswith(KEPT):
        return format
    wanted = recipe.format_of(name)
    return wanted if columns % FORMATS[wanted].block == 0 else _SMALLER_BLOCKS[wanted]
