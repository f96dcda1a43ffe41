"""What a GGUF family is made of: its tensors with their shapes, its settings, and the parts that many share.

Letters of shapes:

    D hidden   F mlp or expert   V vocabulary   E experts   S shared expert   C head size   H heads
    Q = H * C query rows   W = G * C key and value rows
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ftd.errors import InvalidGguf, Unsupported
from ftd.ftw.format import Json
from ftd.ftw.gguf import Value

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
class ExpertPart:
    """One tensor of all experts of a layer: GGUF name, role in a record, shape of one expert's share."""

    gguf: str
    role: str
    shape: str


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture: Hugging Face's model_type, tensors outside and inside the layers, more settings.

    experts: what every layer has of each expert; none in a dense family.
    """

    model_type: str
    outer: tuple[Part, ...]
    layer: tuple[Part, ...]
    extra: Callable[["Settings"], dict[str, Json]]
    experts: tuple[ExpertPart, ...] = ()


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

    def flag(self, key: str, default: bool) -> bool:
        """Return a bool."""
        value = self._metadata.get(f"{self.architecture}.{key}", default)
        if not isinstance(value, bool):
            raise InvalidGguf(f"{self.architecture}.{key} is not a bool: {value!r:.50}")
        return value

    def text(self, key: str, default: str) -> str:
        """Return a string."""
        value = self._metadata.get(f"{self.architecture}.{key}", default)
        if not isinstance(value, str):
            raise InvalidGguf(f"{self.architecture}.{key} is not a string: {value!r:.50}")
        return value


def shortest(value: float) -> float:
    """Return the shortest decimal that is this float32, so that 9.999999747378752e-06 reads 1e-05."""
    return float(str(np.float32(value)))


def attention(norms: bool = False, biases: bool = False, interleaved: bool = False) -> tuple[Part, ...]:
    """Return the tensors of grouped-query attention: norms on heads, biases on q, k and v, sorted q and k."""
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


MLP = (
    Part("ffn_gate.weight", "mlp.gate_proj.weight", "FD"),
    Part("ffn_up.weight", "mlp.up_proj.weight", "FD"),
    Part("ffn_down.weight", "mlp.down_proj.weight", "DF"),
)
TWO_NORMS = (
    Part("attn_norm.weight", "input_layernorm.weight", "D"),
    Part("ffn_norm.weight", "post_attention_layernorm.weight", "D"),
)
FOUR_NORMS = (
    Part("attn_norm.weight", "input_layernorm.weight", "D"),
    Part("post_attention_norm.weight", "post_attention_layernorm.weight", "D"),
    Part("ffn_norm.weight", "pre_feedforward_layernorm.weight", "D"),
    Part("post_ffw_norm.weight", "post_feedforward_layernorm.weight", "D"),
)
OUTER = (
    Part("token_embd.weight", "model.embed_tokens.weight", "VD"),
    Part("output_norm.weight", "model.norm.weight", "D"),
    Part("output.weight", "lm_head.weight", "VD", False),
)


def silu(settings: Settings) -> dict[str, Json]:
    """Return the settings of a model that has none of its own."""
    return {"hidden_act": "silu"}


def sizes(family: Family, hyper: dict[str, Json]) -> dict[str, int]:
    """Return what the letters of shapes stand for in a model of these settings."""
    number = {key: value for key, value in hyper.items() if isinstance(value, int)}
    heads, head_dim = number["num_attention_heads"], number["head_dim"]
    return {
        "D": number["hidden_size"],
        "F": number["moe_intermediate_size" if family.experts else "intermediate_size"],
        "V": number["vocab_size"],
        "E": number.get("num_experts", 0),
        "S": number.get("shared_expert_intermediate_size", 0),
        "H": heads,
        "Q": heads * head_dim,
        "W": number["num_key_value_heads"] * head_dim,
        "C": head_dim,
    }
