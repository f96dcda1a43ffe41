"""Multi-head latent attention (DeepSeek V2 to V3.2, Kimi K2, GLM 4.7 Flash and 5): its tensors and settings.

    i  H_index * j   j  channels of the indexer   k  heads of the indexer
    l  size of a latent   r  rotated channels   n, u  channels of a head's key and value   o = H * u
    a  size of compressed queries   x = H * (n + r)   y = l + r   z = H * (n + u)   others as in gguf_parts

kv_b takes latents to keys and values. Checkpoints and older GGUF files hold it as one matrix; newer GGUF
files hold the keys' part of each head transposed, and the values' part.

Ollama's older files of GLM 4.7 Flash say glm4moelite: what llama.cpp calls the length of a key is the one
with ``_mla`` there, and the other way round. They leave out what all these models share.
"""

from collections.abc import Mapping
from typing import Any

from ftd.errors import InvalidCheckpoint, InvalidGguf, Unsupported
from ftd.ftw.format import Json
from ftd.ftw.gguf import Value
from ftd.ftw.gguf_parts import MAX_LAYERS, TWO_NORMS, Part, Settings

MODEL_TYPES = frozenset(("deepseek_v2", "deepseek_v3", "deepseek_v32"))
ALIASES = {"kimi_k2": "deepseek_v3", "glm4_moe_lite": "deepseek_v3", "glm_moe_dsa": "deepseek_v32"}
# Layers without experts at the start, where the config lists neither them nor their number
_DENSE_LAYERS = {"glm4_moe_lite": 1, "deepseek_v32": 3, "glm_moe_dsa": 3}
SOFTMAX, SIGMOID = 1, 2  # gguf's numbers of gating functions
_KEY = "attention.kv_lora_rank"
_MAX = 1 << 16
_WINDOW_OF_SHARING = 1 << 20  # of the first GLM 5 whose layers share selections

ATTENTION = (
    *TWO_NORMS,
    Part("attn_q.weight", "self_attn.q_proj.weight", "xD", False),
    Part("attn_q_a.weight", "self_attn.q_a_proj.weight", "aD", False),
    Part("attn_q_a.bias", "self_attn.q_a_proj.bias", "a", False),
    Part("attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight", "a", False),
    Part("attn_q_b.weight", "self_attn.q_b_proj.weight", "xa", False),
    Part("attn_kv_a_mqa.weight", "self_attn.kv_a_proj_with_mqa.weight", "yD"),
    Part("attn_kv_a_mqa.bias", "self_attn.kv_a_proj_with_mqa.bias", "y", False),
    Part("attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight", "l"),
    Part("attn_kv_b.weight", "self_attn.kv_b_proj.weight", "zl", False),
    Part("attn_k_b.weight", "self_attn.k_b_proj.weight", "Hln", False),
    Part("attn_v_b.weight", "self_attn.v_b_proj.weight", "Hul", False),
    Part("attn_output.weight", "self_attn.o_proj.weight", "Do"),
    Part("attn_output.bias", "self_attn.o_proj.bias", "D", False),
)

# Of sparse attention; layers of GLM 5 may take the selection of another
INDEXER = (
    Part("indexer.attn_q_b.weight", "self_attn.indexer.wq_b.weight", "ia", False),
    Part("indexer.attn_k.weight", "self_attn.indexer.wk.weight", "jD", False),
    Part("indexer.k_norm.weight", "self_attn.indexer.k_norm.weight", "j", False),
    Part("indexer.k_norm.bias", "self_attn.indexer.k_norm.bias", "j", False),
    Part("indexer.proj.weight", "self_attn.indexer.weights_proj.weight", "kD", False),
)


def is_latent(settings: Settings) -> bool:
    """Say whether a GGUF model compresses its keys and values."""
    return settings.has(_KEY)


def translated(metadata: Mapping[str, Value]) -> dict[str, Value]:
    """Return the metadata of a glm4moelite file in llama.cpp's words."""
    found = dict(metadata)
    for name in ("key_length", "value_length"):
        own, absorbed = (f"glm4moelite.attention.{name}{ending}" for ending in ("", "_mla"))
        if own in metadata and absorbed in metadata:
            found[own], found[absorbed] = metadata[absorbed], metadata[own]
    found["glm4moelite.attention.head_count_kv"] = 1
    found.setdefault("glm4moelite.expert_gating_func", SIGMOID)
    found.setdefault("glm4moelite.expert_weights_norm", True)
    found["tokenizer.ggml.pre"] = "glm4"
    return found


def gguf_settings(settings: Settings) -> dict[str, Json]:
    """Return the sizes of a GGUF model; in newer files the head sizes are those of latents."""
    rope = settings.integer("rope.dimension_count", high=_MAX)
    length, value = "attention.key_length", "attention.value_length"
    if settings.has(f"{length}_mla"):
        length, value = f"{length}_mla", f"{value}_mla"
    query = settings.integer(length, high=_MAX)
    if query <= rope:
        raise InvalidGguf(f"{length} must exceed the {rope} channels that rotate: {query}")
    if not any(settings.has_tensor(f"blk.0.attn_{name}.weight") for name in ("k_b", "kv_b")):
        raise InvalidGguf("tensor blk.0.attn_kv_b.weight is missing")
    sizes: dict[str, Json] = {
        "kv_lora_rank": settings.integer(_KEY),
        "qk_rope_head_dim": rope,
        "qk_nope_head_dim": query - rope,
        "v_head_dim": settings.integer(value, high=_MAX),
        "rope_interleave": True,
    }
    if settings.has_tensor("blk.0.attn_q_a.weight"):
        sizes["q_lora_rank"] = settings.integer("attention.q_lora_rank")
    return sizes


def gguf_index_settings(settings: Settings) -> dict[str, Json]:
    """Return the sizes of the indexer of sparse attention, which all layers have."""
    return {
        "index_n_heads": settings.integer("attention.indexer.head_count", high=_MAX),
        "index_head_dim": settings.integer("attention.indexer.key_length", high=_MAX),
        "index_topk": settings.integer("attention.indexer.top_k"),
    }


def gguf_shared_selections(settings: Settings) -> dict[str, Json]:
    """Return which layers of GLM 5 have an indexer of their own; its channels rotate in pairs."""
    found: dict[str, Json] = {"indexer_rope_interleave": True}
    layers = settings.integer("block_count", high=MAX_LAYERS) - settings.integer(
        "nextn_predict_layers", 0, low=0
    )
    flags = settings.flags("attention.indexer.types")
    if flags is not None and len(flags) < layers:
        raise InvalidGguf(f"attention.indexer.types has {len(flags)} entries for {layers} layers")
    if flags is None and settings.integer("context_length", high=1 << 31) >= _WINDOW_OF_SHARING:
        raise Unsupported("a file that does not say which layers share a selection", "convert the model anew")
    if flags is not None:
        found["indexer_types"] = ["full" if flag else "shared" for flag in flags[:layers]]
    return found


def gguf_scoring(settings: Settings, default: int = SOFTMAX) -> str:
    """Return how experts are scored; files that do not say it are of V2."""
    kind = settings.integer("expert_gating_func", default)
    if kind not in (SOFTMAX, SIGMOID):
        raise Unsupported(f"gating function of experts: {kind}")
    return "sigmoid" if kind == SIGMOID else "softmax"


def hf_settings(config: dict[str, Any], model_type: str) -> dict[str, Json]:
    """Return the sizes of a checkpoint under their own names, and what its family leaves to defaults."""
    found: dict[str, Json] = {}
    for name in ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"):
        found[name] = _size(config, name)
    if config.get("q_lora_rank") is not None:
        found["q_lora_rank"] = _size(config, "q_lora_rank")
    found["head_dim"] = found["qk_rope_head_dim"]
    interleaved = config.get("rope_interleave", True)
    if not isinstance(interleaved, bool):
        raise InvalidCheckpoint(f"rope_interleave of config.json is not a bool: {interleaved!r:.50}")
    found["rope_interleave"] = interleaved
    if model_type == "deepseek_v2":
        method = config.get("topk_method") or "greedy"
        if method not in ("greedy", "group_limited_greedy"):
            raise Unsupported(f"topk_method is not supported: {method!r:.50}")
        return found | {"scoring_func": "softmax", "norm_topk_prob": False, "topk_method": method}
    if config.get("scoring_func", "sigmoid") != "sigmoid":
        raise Unsupported(f"scoring_func is not supported: {config['scoring_func']!r:.50}")
    normalised = config.get("norm_topk_prob", True)
    found |= {"scoring_func": "sigmoid", "norm_topk_prob": normalised}
    if config.get("model_type") in _DENSE_LAYERS:
        found["first_k_dense_replace"] = _dense_layers(config)
    return found | (_index_settings(config) if model_type == "deepseek_v32" else {})


def _index_settings(config: dict[str, Any]) -> dict[str, Json]:
    """Return the sizes of the indexer of sparse attention, and which layers have one."""
    found: dict[str, Json] = {}
    for name in ("index_n_heads", "index_head_dim", "index_topk"):
        found[name] = _size(config, name)
    found["indexer_rope_interleave"] = config["model_type"] == "glm_moe_dsa"
    kinds = config.get("indexer_types")
    if kinds is not None:
        if (
            not isinstance(kinds, list)
            or len(kinds) > MAX_LAYERS
            or set(map(str, kinds)) - {"full", "shared"}
        ):
            raise InvalidCheckpoint(f"indexer_types of config.json is no list of layers: {kinds!r:.50}")
        found["indexer_types"] = kinds
    elif any(config.get(name) not in (None, 1) for name in ("index_topk_freq", "index_topk_pattern")):
        raise Unsupported("which layers share a selection is only read from indexer_types")
    return found


def _size(config: dict[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MAX:
        raise InvalidCheckpoint(f"{name} of config.json is not between 1 and {_MAX}: {value!r:.50}")
    return value


def _dense_layers(config: dict[str, Any]) -> int:
    """Return how many layers at the start have no experts, from a list of all layers."""
    kinds = config.get("mlp_layer_types")
    if kinds is None:
        count = config.get("first_k_dense_replace", _DENSE_LAYERS[config["model_type"]])
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MAX_LAYERS:
            raise InvalidCheckpoint(f"first_k_dense_replace of config.json is no number: {count!r:.50}")
        return count
    if not isinstance(kinds, list) or len(kinds) > MAX_LAYERS:
        raise InvalidCheckpoint(f"mlp_layer_types of config.json is no list of layers: {kinds!r:.50}")
    count = next((index for index, kind in enumerate(kinds) if kind != "dense"), len(kinds))
    if any(kind != "sparse" for kind in kinds[count:]):
        raise Unsupported("layers without experts behind layers with experts are not supported")
    return count
