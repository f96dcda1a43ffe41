"""gpt-oss in GGUF files: llama.cpp's converter says gpt-oss, Ollama's gptoss, with names of its own.

Ollama's older files keep q, k and v in one tensor, and the experts' gate and up in another whose rows
alternate (llama.cpp has neither); their MXFP4 blocks are of the type MXFP4_PAIRS. None of its files tells how
positions are scaled (by yarn always), nor by which expressions text is cut: the vocabulary's pre-tokenizer is
missing or another. Ollama takes all these names under either architecture.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from ftd.ftw.format import Json
from ftd.ftw.gguf import Value
from ftd.ftw.gguf_parts import MAX_LAYERS, Part, Settings, attention
from ftd.ftw.gguf_tokens import names_pre_tokenizer

ARCHITECTURES = ("gpt-oss", "gptoss")
# What Ollama's converter calls a tensor, and which of its rows are meant
_OLLAMAS = {
    **{f"attn_{part}.{kind}": (f"attn_qkv.{kind}", part) for part in "qkv" for kind in ("weight", "bias")},
    "attn_output.weight": ("attn_out.weight", ""),
    "attn_output.bias": ("attn_out.bias", ""),
    "attn_sinks.weight": ("attn_sinks", ""),
    "post_attention_norm.weight": ("ffn_norm.weight", ""),
}
_LLAMA_CPPS = (
    Part("attn_norm.weight", "input_layernorm.weight", "D"),
    Part("post_attention_norm.weight", "post_attention_layernorm.weight", "D"),
    *attention(biases=True),
    Part("attn_sinks.weight", "self_attn.sinks", "H"),
)
ATTENTION = tuple(replace(part, older=_OLLAMAS.get(part.gguf)) for part in _LLAMA_CPPS)


def translated(metadata: Mapping[str, Value]) -> dict[str, Value]:
    """Return the metadata of a file with what Ollama's leave out."""
    found = dict(metadata)
    found.setdefault("gptoss.rope.scaling.type", "yarn")
    if metadata["general.architecture"] == "gptoss" or not names_pre_tokenizer(metadata):
        found["tokenizer.ggml.pre"] = "gpt-4o"
    return found


def settings(routing: Callable[[Settings], dict[str, Json]]) -> Callable[[Settings], dict[str, Json]]:
    """Return the reader of the settings of gpt-oss; ``routing`` reads those that all experts have."""

    def read(settings: Settings) -> dict[str, Json]:
        layers = settings.integer("block_count", high=MAX_LAYERS)
        if settings.architecture == "gptoss" and settings.number("rope.scaling.factor", 1.0) != 1.0:
            settings.integer("rope.scaling.original_context_length")  # the length of all positions is another
        return {
            **routing(settings),
            "attention_bias": True,
            "sliding_window": settings.integer("attention.sliding_window"),
            "layer_types": [
                "full_attention" if layer % 2 else "sliding_attention" for layer in range(layers)
            ],
            # Constants of the architecture: the file does not say them.
            "swiglu_limit": 7.0,
            "swiglu_alpha": 1.702,
        }

    return read
