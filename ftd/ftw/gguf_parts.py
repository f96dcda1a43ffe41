"""What a GGUF family is made of: its tensors with their shapes, its settings, and the parts that many share.

Letters of shapes:

    D hidden   F mlp or expert   I mlp beside experts   V vocabulary   E experts   S shared expert
    C head size   H heads   Q = H * C query rows   W = G * C key and value rows   3 = 3 * Q
    P positions   T token types
    G and N key and value heads of a gated delta net, of L and M channels   B = N * M
    A = 2 * G * L + B channels of its convolution, which has K taps
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import numpy as np

from ftd.errors import InvalidGguf, Unsupported
from ftd.ftw.format import Json
from ftd.ftw.gguf import Value

MAX_DIM = 1 << 24
MAX_LAYERS = 4096
EMBEDDINGS = "model.embed"


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of a family: GGUF name, Hugging Face name, shape in the letters above, and what it needs.

    fused: which part of the tensor's rows it is, as in ``fused_rows``. older: the GGUF name and part of older
    files, or of another converter's.
    """

    gguf: str
    name: str
    shape: str
    required: bool = True
    interleaved: bool = False
    fused: str = ""
    older: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class ExpertPart:
    """One tensor of all experts of a layer: GGUF name, role in a record, shape of one expert's share."""

    gguf: str
    role: str
    shape: str


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture: Hugging Face's model_type, tensors outside and inside the layers, more settings.

    experts: what a layer has of each expert; none in a dense family. dense: what the layers without experts
    of such a family have in place of ``layer``; none where all have experts. recurrent: what layers have in
    place of ``layer`` that ``layer_types`` calls linear_attention. alternating: if rows of gate and up
    alternate where one tensor holds both, instead of one after the other.
    """

    model_type: str
    outer: tuple[Part, ...]
    layer: tuple[Part, ...]
    extra: Callable[["Settings"], dict[str, Json]]
    experts: tuple[ExpertPart, ...] = ()
    dense: tuple[Part, ...] = ()
    recurrent: tuple[Part, ...] = ()
    alternating: bool = False

    def wanted(self, hyper: dict[str, Json]) -> Iterator[tuple[int | None, Part]]:
        """Yield the tensors outside the experts in the order of a step, each with its layer, if any."""
        first = [part for part in self.outer if part.name.startswith(EMBEDDINGS)]
        yield from ((None, part) for part in first)
        routed = set(expert_layers(self, hyper))
        for layer in range(int(str(hyper["num_hidden_layers"]))):
            parts = self.layer if layer in routed or not self.experts else self.dense
            if self.recurrent and _kind(hyper, layer) == "linear_attention":
                parts = self.recurrent
            yield from ((layer, part) for part in parts)
        yield from ((None, part) for part in self.outer if part not in first)


def _kind(hyper: dict[str, Json], layer: int) -> str:
    kinds = hyper["layer_types"]
    assert isinstance(kinds, list)
    return str(kinds[layer])


def expert_layers(family: Family, hyper: dict[str, Json]) -> list[int]:
    """Return the layers that have experts: after the first dense ones, every so many, and not the listed."""
    if not family.experts:
        return []
    first, every = hyper.get("first_k_dense_replace", 0), hyper.get("decoder_sparse_step", 1)
    listed = hyper.get("mlp_only_layers", [])
    assert isinstance(first, int) and isinstance(every, int) and isinstance(listed, list)
    layers = range(int(str(hyper["num_hidden_layers"])))
    return [layer for layer in layers if layer >= first and (layer + 1) % every == 0 and layer not in listed]


class Settings:
    """Typed and bounded look-ups of one model's ``ARCH.key`` metadata, with what its converter left out."""

    def __init__(self, architecture: str, metadata: dict[str, Value], tensors: Collection[str] = ()) -> None:
        self.architecture = architecture
        self.metadata = metadata
        self._tensors = tensors

    def has_tensor(self, name: str) -> bool:
        """Say whether the model has a tensor, for what only tensors tell."""
        return name in self._tensors

    def has(self, key: str) -> bool:
        """Say whether the model sets ``ARCH.key``."""
        return f"{self.architecture}.{key}" in self.metadata

    def get(self, key: str, default: Value | None) -> Value | None:
        """Return ``ARCH.key`` as it is, whatever its type."""
        return self.metadata.get(f"{self.architecture}.{key}", default)

    def integer(self, key: str, default: int | None = None, high: int = MAX_DIM, low: int = 1) -> int:
        """Return an integer of these bounds; an array must hold the same number throughout."""
        value = self.get(key, default)
        if isinstance(value, np.ndarray):
            if len(value) == 0 or not np.all(value == value[0]) or value.dtype.kind not in "iu":
                raise Unsupported(f"{self.architecture}.{key} differs between layers")
            value = int(value[0])
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise InvalidGguf(f"{self.architecture}.{key} is not between {low} and {high}: {value!r:.50}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a positive finite number."""
        value = self.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e30:
            raise InvalidGguf(f"{self.architecture}.{key} is not a positive number: {value!r:.50}")
        return shortest(value)

    def flag(self, key: str, default: bool) -> bool:
        """Return a bool."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise InvalidGguf(f"{self.architecture}.{key} is not a bool: {value!r:.50}")
        return value

    def flags(self, key: str) -> list[bool] | None:
        """Return an array of bools, None if there is none."""
        value = self.metadata.get(f"{self.architecture}.{key}")
        if value is None:
            return None
        items: object = value.tolist() if isinstance(value, np.ndarray) else value
        if not isinstance(items, list) or not all(isinstance(item, bool) for item in items):
            raise InvalidGguf(f"{self.architecture}.{key} is not an array of bools")
        return [bool(item) for item in items]

    def text(self, key: str, default: str) -> str:
        """Return a string."""
        value = self.get(key, default)
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
MLP_BESIDE_EXPERTS = (
    Part("ffn_gate.weight", "mlp.gate_proj.weight", "ID"),
    Part("ffn_up.weight", "mlp.up_proj.weight", "ID"),
    Part("ffn_down.weight", "mlp.down_proj.weight", "DI"),
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
        "I": number["intermediate_size"],
        "V": number["vocab_size"],
        "E": number.get("num_experts", 0),
        "S": number.get("shared_expert_intermediate_size", 0),
        "H": heads,
        "Q": heads * head_dim,
        "W": number["num_key_value_heads"] * head_dim,
        "C": head_dim,
        "3": 3 * heads * head_dim,
        **_recurrent_sizes(number),
        **latent_sizes(number),
        "P": number["max_position_embeddings"],
        "T": number.get("type_vocab_size", 0),
    }


def latent_sizes(number: dict[str, int]) -> dict[str, int]:
    """Return the letters of latent attention (see latent.py); nothing in a model without it."""
    if "kv_lora_rank" not in number:
        return {}
    heads, rope = number["num_attention_heads"], number["qk_rope_head_dim"]
    rank, nope, value = number["kv_lora_rank"], number["qk_nope_head_dim"], number["v_head_dim"]
    return {
        "l": rank,
        "n": nope,
        "u": value,
        "a": number.get("q_lora_rank", 0),
        "x": heads * (nope + rope),
        "y": rank + rope,
        "z": heads * (nope + value),
        "o": heads * value,
        "i": number.get("index_n_heads", 0) * number.get("index_head_dim", 0),
        "j": number.get("index_head_dim", 0),
        "k": number.get("index_n_heads", 0),
    }


def _recurrent_sizes(number: dict[str, int]) -> dict[str, int]:
    names = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim", "conv_kernel_dim")
    key_heads, value_heads, key, value, taps = (number.get(f"linear_{name}", 0) for name in names)
    return {
        "G": key_heads,
        "N": value_heads,
        "L": key,
        "M": value,
        "B": value_heads * value,
        "K": taps,
        "A": 2 * key_heads * key + value_heads * value,
    }
