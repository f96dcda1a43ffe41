"""Which GGUF architectures become FTW: their hyperparameters and tensor names in Hugging Face's words.

A family lists every tensor that it knows with its shape; a model with a tensor that is not listed, without
one that is required, or with another shape is refused, so no weight is ever dropped in silence.

Row order: GGUF files of the llama architecture keep the rows of q and k interleaved, for a rotation of
neighbouring channels. The importer sorts them back to Hugging Face's order (rotation of halves); no value
changes. Norm weights of Gemma are stored in GGUF with one added: they are kept so, and rms_norm multiplies by
them as is.
"""

from collections.abc import Callable, Mapping

import numpy as np

from ftd.errors import InvalidGguf, Unsupported
from ftd.ftw import encoders, gemma3, gptoss, latent, mistral3, qwen35, recurrent
from ftd.ftw.format import ENCODER_TYPES, Json
from ftd.ftw.gguf import Value
from ftd.ftw.gguf_moe import MOE_FAMILIES
from ftd.ftw.gguf_parts import (
    FOUR_NORMS,
    MAX_LAYERS,
    MLP,
    OUTER,
    TWO_NORMS,
    Family,
    Settings,
    attention,
    shortest,
    silu,
)
from ftd.ftw.gguf_shards import GgufModel

_LLAMA = Family("llama", OUTER, (*TWO_NORMS, *attention(interleaved=True), *MLP), silu)
FAMILIES: dict[str, Family] = {
    "llama": _LLAMA,
    "mistral3": _LLAMA,
    "qwen2": Family("qwen2", OUTER, (*TWO_NORMS, *attention(biases=True), *MLP), silu),
    "qwen3": Family("qwen3", OUTER, (*TWO_NORMS, *attention(norms=True), *MLP), silu),
    "qwen35": Family(
        "qwen3_5",
        OUTER,
        (*recurrent.NORMS, *recurrent.ATTENTION, *MLP),
        recurrent.gguf_settings(True, silu),
        recurrent=(*recurrent.NORMS, *recurrent.delta_net(False), *MLP),
    ),
    "gemma3": Family("gemma3_text", OUTER, (*FOUR_NORMS, *attention(norms=True), *MLP), gemma3.settings),
    **encoders.FAMILIES,
}


_DIALECTS: dict[str, Callable[[Mapping[str, Value]], dict[str, Value]]] = {
    "gemma3": gemma3.translated,
    "glm4moelite": latent.translated,
    "mistral3": mistral3.translated,
    **dict.fromkeys(gptoss.ARCHITECTURES, gptoss.translated),
    **dict.fromkeys(qwen35.ARCHITECTURES, qwen35.translated),
}


def family_of(model: GgufModel) -> tuple[Family, Settings]:
    """Return the family of a model and its settings; raise Unsupported with the list of known ones."""
    architecture = model.metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise InvalidGguf(f"general.architecture is not a string: {architecture!r:.50}")
    metadata = _DIALECTS[architecture](model.metadata) if architecture in _DIALECTS else model.metadata
    if architecture == "gemma3" and "token_embd.weight" in model.source:
        metadata = gemma3.embedded(metadata, model.source["token_embd.weight"][1].dims[-1])
    settings = Settings(architecture, metadata, model.source)
    experts = metadata.get(f"{architecture}.expert_count", 0)
    if not isinstance(experts, int) or isinstance(experts, bool):
        raise InvalidGguf(f"{architecture}.expert_count is not an integer: {experts!r:.50}")
    families = MOE_FAMILIES if experts else FAMILIES
    if architecture not in families:
        raise Unsupported(
            f"model architecture is not supported: {architecture!r:.50}"
            + (f" with {experts} experts" if experts else ""),
            f"use a model of one of {' '.join(sorted(FAMILIES | MOE_FAMILIES))}",
        )
    return families[architecture], settings


def hyperparameters(family: Family, settings: Settings, model: GgufModel) -> dict[str, Json]:
    """Return the model's settings under the names of Hugging Face's config.json."""
    hidden, heads = settings.integer("embedding_length"), settings.integer("attention.head_count")
    embedding = model.source.get("token_embd.weight")
    if embedding is None:
        raise InvalidGguf("tensor token_embd.weight is missing")
    is_latent = latent.is_latent(settings)
    length = "rope.dimension_count" if is_latent else "attention.key_length"
    head_dim = settings.integer(length, hidden // heads if heads <= hidden else None)
    if not is_latent and settings.integer("attention.value_length", head_dim) != head_dim:
        raise Unsupported("keys and values of different head sizes are not supported")
    num_layers = settings.integer("block_count", high=MAX_LAYERS) - drafting_layers(model)
    if num_layers < 1:
        raise InvalidGguf(f"all {settings.integer('block_count')} layers only draft tokens")
    key_value_heads = settings.integer("attention.head_count_kv", heads)
    rotated = settings.integer("rope.dimension_count", head_dim, high=head_dim)
    if rotated % 2:
        raise InvalidGguf(f"an odd number of channels rotates: {rotated}")
    if rotated != head_dim and any(part.interleaved for part in family.layer):
        raise Unsupported(f"{settings.architecture} that rotates {rotated} of {head_dim} channels")
    _refuse_unknown(family, settings, rotated)
    if heads % key_value_heads:
        raise InvalidGguf(f"{heads} heads do not share {key_value_heads} key-value heads")
    return {
        "hidden_size": hidden,
        "intermediate_size": settings.integer(_mlp_key(family, settings)),
        "num_hidden_layers": num_layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_value_heads,
        "head_dim": head_dim,
        "vocab_size": embedding[1].dims[-1],
        "max_position_embeddings": settings.integer("context_length", high=1 << 31),
        **_norm_eps(family, settings),
        "rope_theta": settings.number("rope.freq_base", 10000.0),
        "rope_scaling": _rope_scaling(settings, model, rotated),
        **({} if rotated == head_dim else {"partial_rotary_factor": rotated / head_dim}),
        "tie_word_embeddings": "output.weight" not in model.source,
        "attention_bias": "blk.0.attn_q.bias" in model.source,
        **encoders.gguf_settings(model),
        **family.extra(settings),
    }


def _refuse_unknown(family: Family, settings: Settings, rotated: int) -> None:
    """Raise Unsupported for settings that change what is computed, in families that know nothing of them."""
    known: list[tuple[str, Value]] = [("rope.scaling.attn_factor", 1.0), ("final_logit_softcapping", 0.0)]
    known.append(("rope.dimension_count_swa", rotated))
    if family.model_type not in ENCODER_TYPES:
        known.append(("attention.causal", True))
    if family.model_type != "gemma3_text":
        known.append(("rope.freq_base_swa", settings.number("rope.freq_base", 10000.0)))
    for key, neutral in known:
        value = settings.get(key, neutral)
        if isinstance(value, np.ndarray) or value != neutral:
            raise Unsupported(f"{settings.architecture}.{key} is not supported: {value!r:.50}")


def _norm_eps(family: Family, settings: Settings) -> dict[str, Json]:
    if family.model_type in ENCODER_TYPES:
        return {"layer_norm_eps": settings.number(encoders.LAYER_NORM_KEY)}
    return {"rms_norm_eps": settings.number("attention.layer_norm_rms_epsilon")}


def drafting_layers(model: GgufModel) -> int:
    """Return how many layers at the end only draft tokens (multi-token prediction); ftd leaves them out."""
    architecture = model.metadata["general.architecture"]
    count = model.metadata.get(f"{architecture}.nextn_predict_layers", 0)
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MAX_LAYERS:
        raise InvalidGguf(f"{architecture}.nextn_predict_layers is no number of layers: {count!r:.50}")
    return count


def _mlp_key(family: Family, settings: Settings) -> str:
    """Return the key of the size of an MLP; in a model of experts alone theirs stands in for it."""
    if family.experts and not settings.has("feed_forward_length"):
        return "expert_feed_forward_length"
    return "feed_forward_length"


def _rope_scaling(settings: Settings, model: GgufModel, rotated: int) -> Json:
    """Return None, or Hugging Face's rope_scaling; ``factors`` divides each inverse frequency by a number.

    rotated: how many channels of a head the rotation turns.
    """
    # Files that name no type are linear, and files of 2023 have another word for the factor
    factor = settings.number("rope.scaling.factor", settings.number("rope.scale_linear", 1.0))
    kind = settings.text("rope.scaling.type", "linear")
    if factor == 1.0 and kind in ("linear", "yarn"):
        kind = "none"
    if "rope_freqs.weight" in model.source:
        file, tensor = model.source["rope_freqs.weight"]
        if tensor.type != "F32" or tensor.dims != (rotated // 2,):
            raise InvalidGguf(f"rope_freqs.weight is not F32 [{rotated // 2}]: {tensor.type} {tensor.dims}")
        factors = file.read(tensor).view("<f4")
        if not np.all(np.isfinite(factors) & (factors > 0)):
            raise InvalidGguf("rope_freqs.weight has a factor that is not positive")
        if kind != "none":
            raise Unsupported(f"rope scaling is not supported beside rope_freqs.weight: {kind!r:.50}")
        return {"rope_type": "factors", "factors": [shortest(factor) for factor in factors]}
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise Unsupported(f"rope scaling is not supported: {kind!r:.50}", "use one of none linear yarn")
    scaling: dict[str, Json] = {"rope_type": kind, "factor": factor}
    if settings.has("rope.scaling.original_context_length"):
        scaling["original_max_position_embeddings"] = settings.integer("rope.scaling.original_context_length")
    if settings.has("rope.scaling.yarn_log_multiplier"):  # a tenth of what the model calls it
        magnitude = shortest(10 * settings.number("rope.scaling.yarn_log_multiplier"))
        scaling["mscale"] = scaling["mscale_all_dim"] = magnitude
    for key, name in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
        if settings.has(f"rope.scaling.{key}"):
            scaling[name] = settings.number(f"rope.scaling.{key}")
    if settings.architecture in gptoss.ARCHITECTURES:
        scaling["truncate"] = False  # part of the model's definition; GGUF has no word for it
    return scaling
