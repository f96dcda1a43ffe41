"""Which GGUF architectures become FTW: their hyperparameters and tensor names in Hugging Face's words.

A family lists every tensor that it knows with its shape; a model with a tensor that is not listed, without
one that is required, or with another shape is refused, so no weight is ever dropped in silence. Letters:

    D hidden   F mlp   V vocabulary   Q = H * C query rows   W = G * C key and value rows   C head size

Row order: GGUF files of the llama architecture keep the rows of q and k interleaved, for a rotation of
neighbouring channels. The importer sorts them back to Hugging Face's order (rotation of halves); no value
changes. Norm weights of Gemma are stored in GGUF with one added: they are kept so, and rms_norm multiplies by
them as is.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ftd.errors import InvalidGguf, Unsupported
from ftd.ftw.format import Json
from ftd.ftw.gguf import Value
from ftd.ftw.gguf_shards import GgufModel

MAX_DIM = 1 << 24
MAX_LAYERS = 4096


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of a family: GGUF name, Hugging Face name, shape in the letters above, and what it needs."""

    gguf: str
    name: str
    shape: str
    required: bool = True
    interleaved: bool = False


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture: Hugging Face's model_type, tensors outside and inside the layers, more settings."""

    model_type: str
    outer: tuple[Part, ...]
    layer: tuple[Part, ...]
    extra: Callable[["Settings"], dict[str, Json]]


class Settings:
    """Typed and bounded look-ups of one model's ``ARCH.key`` metadata."""

    def __init__(self, architecture: str, metadata: dict[str, Value]) -> None:
        self.architecture = architecture
        self._metadata = metadata

    def has(self, key: str) -> bool:
        """Say whether the model sets ``ARCH.key``."""
        return f"{self.architecture}.{key}" in self._metadata

    def integer(self, key: str, default: int | None = None, high: int = MAX_DIM) -> int:
        """Return a positive integer; an array must hold the same number throughout."""
        value = self._metadata.get(f"{self.architecture}.{key}", default)
        if isinstance(value, np.ndarray):
            if len(value) == 0 or not np.all(value == value[0]) or value.dtype.kind not in "iu":
                raise Unsupported(f"{self.architecture}.{key} differs between layers")
            value = int(value[0])
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= high:
            raise InvalidGguf(f"{self.architecture}.{key} is not between 1 and {high}: {value!r:.50}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a positive finite number."""
        value = self._metadata.get(f"{self.architecture}.{key}", default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e30:
            raise InvalidGguf(f"{self.architecture}.{key} is not a positive number: {value!r:.50}")
        return shortest(value)

    def text(self, key: str, default: str) -> str:
        """Return a string."""
        value = self._metadata.get(f"{self.architecture}.{key}", default)
        if not isinstance(value, str):
            raise InvalidGguf(f"{self.architecture}.{key} is not a string: {value!r:.50}")
        return value


def shortest(value: float) -> float:
    """Return the shortest decimal that is this float32, so that 9.999999747378752e-06 reads 1e-05."""
    return float(str(np.float32(value)))


def _attention(norms: bool = False, biases: bool = False, interleaved: bool = False) -> tuple[Part, ...]:
    parts = []
    for letter, rows in (("q", "Q"), ("k", "W"), ("v", "W")):
        gguf, name = f"attn_{letter}", f"self_attn.{letter}_proj"
        sort = interleaved and letter != "v"
        parts.append(Part(f"{gguf}.weight", f"{name}.weight", f"{rows}D", interleaved=sort))
        parts.append(Part(f"{gguf}.bias", f"{name}.bias", rows, required=biases, interleaved=sort))
    parts.append(Part("attn_output.weight", "self_attn.o_proj.weight", "DQ"))
    parts.append(Part("attn_output.bias", "self_attn.o_proj.bias", "D", required=False))
    if norms:
        parts.append(Part("attn_q_norm.weight", "self_attn.q_norm.weight", "C"))
        parts.append(Part("attn_k_norm.weight", "self_attn.k_norm.weight", "C"))
    return tuple(parts)


_MLP = (
    Part("ffn_gate.weight", "mlp.gate_proj.weight", "FD"),
    Part("ffn_up.weight", "mlp.up_proj.weight", "FD"),
    Part("ffn_down.weight", "mlp.down_proj.weight", "DF"),
)
_TWO_NORMS = (
    Part("attn_norm.weight", "input_layernorm.weight", "D"),
    Part("ffn_norm.weight", "post_attention_layernorm.weight", "D"),
)
_FOUR_NORMS = (
    Part("attn_norm.weight", "input_layernorm.weight", "D"),
    Part("post_attention_norm.weight", "post_attention_layernorm.weight", "D"),
    Part("ffn_norm.weight", "pre_feedforward_layernorm.weight", "D"),
    Part("post_ffw_norm.weight", "post_feedforward_layernorm.weight", "D"),
)
_OUTER = (
    Part("token_embd.weight", "model.embed_tokens.weight", "VD"),
    Part("output_norm.weight", "model.norm.weight", "D"),
    Part("output.weight", "lm_head.weight", "VD", False),
)


def _silu(settings: Settings) -> dict[str, Json]:
    return {"hidden_act": "silu"}


def _gemma3(settings: Settings) -> dict[str, Json]:
    layers = settings.integer("block_count", high=MAX_LAYERS)
    hidden, heads = settings.integer("embedding_length"), settings.integer("attention.head_count")
    head_dim = settings.integer("attention.key_length", 256)
    pattern = settings.integer("attention.sliding_window_pattern", 6)
    return {
        "hidden_act": "gelu_pytorch_tanh",
        "sliding_window": settings.integer("attention.sliding_window"),
        "layer_types": [
            "full_attention" if (index + 1) % pattern == 0 else "sliding_attention" for index in range(layers)
        ],
        # The file does not say it; the 27B model (62 layers) alone scales by hidden / heads.
        "query_pre_attn_scalar": hidden // heads if layers == 62 else head_dim,
        "rope_local_base_freq": settings.number("rope.freq_base_swa", 10000.0),
    }


FAMILIES: dict[str, Family] = {
    "llama": Family("llama", _OUTER, (*_TWO_NORMS, *_attention(interleaved=True), *_MLP), _silu),
    "qwen2": Family("qwen2", _OUTER, (*_TWO_NORMS, *_attention(biases=True), *_MLP), _silu),
    "qwen3": Family("qwen3", _OUTER, (*_TWO_NORMS, *_attention(norms=True), *_MLP), _silu),
    "gemma3": Family("gemma3_text", _OUTER, (*_FOUR_NORMS, *_attention(norms=True), *_MLP), _gemma3),
}


def family_of(model: GgufModel) -> tuple[Family, Settings]:
    """Return the family of a model and its settings; raise Unsupported with the list of known ones."""
    architecture = model.metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise InvalidGguf(f"general.architecture is not a string: {architecture!r:.50}")
    settings = Settings(architecture, model.metadata)
    known = f"use a model of one of {' '.join(FAMILIES)}"
    if architecture not in FAMILIES:
        raise Unsupported(f"model architecture is not supported: {architecture!r:.50}", known)
    experts = model.metadata.get(f"{architecture}.expert_count", 0)
    if not isinstance(experts, int) or experts != 0:
        raise Unsupported(f"mixture-of-experts models of {architecture} are not supported yet", known)
    return FAMILIES[architecture], settings


def hyperparameters(family: Family, settings: Settings, model: GgufModel) -> dict[str, Json]:
    """Return the model's settings under the names of Hugging Face's config.json."""
    hidden, heads = settings.integer("embedding_length"), settings.integer("attention.head_count")
    embedding = model.source.get("token_embd.weight")
    if embedding is None:
        raise InvalidGguf("tensor token_embd.weight is missing")
    head_dim = settings.integer("attention.key_length", hidden // heads if heads <= hidden else None)
    if settings.integer("attention.value_length", head_dim) != head_dim:
        raise Unsupported("keys and values of different head sizes are not supported")
    key_value_heads = settings.integer("attention.head_count_kv", heads)
    if heads % key_value_heads:
        raise InvalidGguf(f"{heads} heads do not share {key_value_heads} key-value heads")
    return {
        "hidden_size": hidden,
        "intermediate_size": settings.integer("feed_forward_length"),
        "num_hidden_layers": settings.integer("block_count", high=MAX_LAYERS),
        "num_attention_heads": heads,
        "num_key_value_heads": key_value_heads,
        "head_dim": head_dim,
        "vocab_size": embedding[1].dims[-1],
        "max_position_embeddings": settings.integer("context_length", high=1 << 31),
        "rms_norm_eps": settings.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": settings.number("rope.freq_base", 10000.0),
        "rope_scaling": _rope_scaling(settings, model, head_dim),
        "tie_word_embeddings": "output.weight" not in model.source,
        "attention_bias": "blk.0.attn_q.bias" in model.source,
        **family.extra(settings),
    }


def _rope_scaling(settings: Settings, model: GgufModel, head_dim: int) -> Json:
    """Return None, or Hugging Face's rope_scaling; ``factors`` divides each inverse frequency by a number."""
    if settings.integer("rope.dimension_count", head_dim) != head_dim:
        raise Unsupported("rotation of a part of the channels is not supported")
    if "rope_freqs.weight" in model.source:
        file, tensor = model.source["rope_freqs.weight"]
        if tensor.type != "F32" or tensor.dims != (head_dim // 2,):
            raise InvalidGguf(f"rope_freqs.weight is not F32 [{head_dim // 2}]: {tensor.type} {tensor.dims}")
        factors = file.read(tensor).view("<f4")
        if not np.all(np.isfinite(factors) & (factors > 0)):
            raise InvalidGguf("rope_freqs.weight has a factor that is not positive")
        return {"rope_type": "factors", "factors": [shortest(factor) for factor in factors]}
    kind = settings.text("rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise Unsupported(f"rope scaling is not supported: {kind!r:.50}", "use one of none linear yarn")
    scaling: dict[str, Json] = {"rope_type": kind, "factor": settings.number("rope.scaling.factor")}
    if settings.has("rope.scaling.original_context_length"):
        scaling["original_max_position_embeddings"] = settings.integer("rope.scaling.original_context_length")
    return scaling
