"""Encoders of the BERT kind: their tensors and settings, from GGUF and from Hugging Face checkpoints.

    P  positions   T  token types   other letters as in gguf_parts

Biases, learned positions and token types are there or not: the engine looks. Nomic's files hold q, k and v as
one tensor, which stays one.
"""

from typing import Any

from ftd.errors import InvalidCheckpoint, InvalidGguf, Unsupported
from ftd.ftw.format import Json
from ftd.ftw.gguf_parts import Family, Part, Settings
from ftd.ftw.gguf_shards import GgufModel

LAYER_NORM_KEY = "attention.layer_norm_epsilon"
POOLINGS = {"mean": 1, "cls": 2, "last": 3}  # gguf's numbers


def _linear(gguf: str, name: str, shape: str, required: bool = True) -> tuple[Part, Part]:
    return (
        Part(f"{gguf}.weight", f"{name}.weight", shape, required),
        Part(f"{gguf}.bias", f"{name}.bias", shape[0], False),
    )


def _norm(gguf: str, name: str) -> tuple[Part, Part]:
    return Part(f"{gguf}.weight", f"{name}.weight", "D"), Part(f"{gguf}.bias", f"{name}.bias", "D")


_OUTER = (
    Part("token_embd.weight", "model.embed_tokens.weight", "VD"),
    Part("token_types.weight", "model.embed_types.weight", "TD", False),
    *_norm("token_embd_norm", "model.embed_norm"),
)
_POSITIONS = Part("position_embd.weight", "model.embed_positions.weight", "PD")
_QKV = tuple(part for letter in "qkv" for part in _linear(f"attn_{letter}", f"self_attn.{letter}_proj", "QD"))
_REST = (
    *_linear("attn_output", "self_attn.o_proj", "DQ"),
    *_norm("attn_output_norm", "post_attention_layernorm"),
    *_linear("ffn_up", "mlp.up_proj", "FD"),
    *_linear("ffn_down", "mlp.down_proj", "DF"),
    *_norm("layer_output_norm", "post_feedforward_layernorm"),
)
_GATE = _linear("ffn_gate", "mlp.gate_proj", "FD")
_OPTIONAL_QKV = tuple(Part(part.gguf, part.name, part.shape, False) for part in _QKV)


def _act(name: str) -> Any:
    def read(settings: Settings) -> dict[str, Json]:
        if settings.has("attention.causal") and settings.flag("attention.causal", True):
            raise Unsupported(f"a {settings.architecture} model that attends causally is not supported")
        return {"hidden_act": name}

    return read


FAMILIES: dict[str, Family] = {
    "bert": Family("bert", (*_OUTER, _POSITIONS), (*_QKV, *_REST), _act("gelu")),
    "nomic-bert": Family(
        "nomic_bert",
        _OUTER,
        (Part("attn_qkv.weight", "self_attn.qkv_proj.weight", "3D", False), *_OPTIONAL_QKV, *_REST, *_GATE),
        _act("silu"),
    ),
}


def gguf_settings(model: GgufModel) -> dict[str, Json]:
    """Return how many token types there are, which only the tensor's shape says."""
    if "token_types.weight" not in model.source:
        return {}
    dims = model.source["token_types.weight"][1].dims
    if not 1 <= len(dims) <= 2:
        raise InvalidGguf(f"tensor token_types.weight has dims {list(dims)}")
    return {"type_vocab_size": dims[1] if len(dims) == 2 else 1}


_OTHER_WORDS = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "max_trained_positions": "max_position_embeddings",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
}


def renamed(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config.json of an encoder in the words of BERT's; Nomic's own are GPT-2's.

    Positions beyond those of the training are left out: they need another rotation.
    """
    if config.get("model_type") != "nomic_bert":
        return config
    found = dict(config)
    for word, ours in _OTHER_WORDS.items():
        if config.get(word) is not None:
            found.setdefault(ours, config[word])
    return found


def hf_settings(config: dict[str, Any]) -> dict[str, Json]:
    """Return what an encoder's config.json says besides sizes; refuse what changes the computation."""
    if config.get("position_embedding_type", "absolute") != "absolute":
        raise Unsupported(
            f"position_embedding_type is not supported: {config['position_embedding_type']!r:.50}"
        )
    if config.get("is_decoder"):
        raise Unsupported("a BERT model that is a decoder is not supported")
    for name, neutral in (("prenorm", False), ("rotary_emb_interleaved", False), ("rotary_emb_fraction", 1)):
        if config.get(name, neutral) != neutral:
            raise Unsupported(f"{name} of config.json is not supported: {config[name]!r:.50}")
    eps, types = config.get("layer_norm_eps", 1e-12), config.get("type_vocab_size", 2)
    if not isinstance(eps, float) or not 0 < eps < 1:
        raise InvalidCheckpoint(f"layer_norm_eps of config.json is no small number: {eps!r:.50}")
    if not isinstance(types, int) or isinstance(types, bool) or not 1 <= types <= 1024:
        raise InvalidCheckpoint(f"type_vocab_size of config.json is no number of types: {types!r:.50}")
    known = "gelu" if config.get("model_type") == "bert" else "silu"
    if config.get("hidden_act", known) != known:
        raise Unsupported(
            f"hidden_act of {config['model_type']} must be {known}: {config['hidden_act']!r:.50}"
        )
    return {"layer_norm_eps": eps, "type_vocab_size": types, "hidden_act": known}
