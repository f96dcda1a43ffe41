"""One spelling for the tensor names of Hugging Face checkpoints, before families look for theirs.

A decoder is spelt ``model.embed_tokens…``, ``model.layers.N…``, ``model.norm…``; checkpoints of the bare
model, as embedding models are published, lack the ``model.``. Encoders of the BERT kind get the decoder's
words for what is the same thing. What they have beside the encoder (a pooler, a head) has no use here, nor
has what models of text and pictures have beside the text.
"""

import re
from collections.abc import Mapping
from typing import TypeVar

from ftd.errors import InvalidCheckpoint

_T = TypeVar("_T")

ENCODERS = ("bert", "nomic_bert")
_ENCODER_WORDS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), word)
    for pattern, word in (
        (r"^(?:bert|nomic_bert)\.", ""),
        (r"\.gamma$", ".weight"),
        (r"\.beta$", ".bias"),
        (r"^embeddings\.word_embeddings\.", "model.embed_tokens."),
        (r"^embeddings\.position_embeddings\.", "model.embed_positions."),
        (r"^embeddings\.token_type_embeddings\.", "model.embed_types."),
        (r"^embeddings\.LayerNorm\.", "model.embed_norm."),
        (r"^emb_ln\.", "model.embed_norm."),
        (r"^(?:encoder\.layers?|layers)\.", "model.layers."),
        (r"\.attn\.Wqkv\.", ".self_attn.qkv_proj."),
        (r"\.attn\.out_proj\.", ".self_attn.o_proj."),
        (r"\.norm1\.", ".post_attention_layernorm."),
        (r"\.norm2\.", ".post_feedforward_layernorm."),
        (r"\.mlp\.fc11\.", ".mlp.up_proj."),
        (r"\.mlp\.fc12\.", ".mlp.gate_proj."),
        (r"\.mlp\.fc2\.", ".mlp.down_proj."),
        (r"\.attention\.self\.query\.", ".self_attn.q_proj."),
        (r"\.attention\.self\.key\.", ".self_attn.k_proj."),
        (r"\.attention\.self\.value\.", ".self_attn.v_proj."),
        (r"\.attention\.output\.dense\.", ".self_attn.o_proj."),
        (r"\.attention\.output\.LayerNorm\.", ".post_attention_layernorm."),
        (r"\.intermediate\.dense\.", ".mlp.up_proj."),
        (r"\.output\.dense\.", ".mlp.down_proj."),
        (r"\.(?:output\.LayerNorm|post_mlp_layernorm)\.", ".post_feedforward_layernorm."),
    )
)
_ENCODER_WITHOUT_USE = re.compile(r"^(?:bert\.)?(?:pooler\.|cls\.|embeddings\.position_ids$)")
# Models of text and pictures: of the text they are read, drafting layers and pictures are left out
COMPOSITES = ("gemma3", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_next")
_TEXT = re.compile(r"^(?:model\.language_model|language_model\.model)\.")
_HEAD_OF_TEXT = re.compile(r"^language_model\.lm_head\.")
_NO_TEXT = re.compile(r"^(?:(?:model\.)?(?:visual|vision_tower|multi_modal_projector)|mtp)\.")
_BARE = re.compile(r"^(?:embed_tokens|layers|norm)\.")


def canonical(tensors: Mapping[str, _T], model_type: object) -> dict[str, _T]:
    """Return ``tensors`` under their names in FTW; raise InvalidCheckpoint if two of them get the same."""
    named: dict[str, _T] = {}
    is_bare = "embed_tokens.weight" in tensors
    for name, tensor in tensors.items():
        if model_type in ENCODERS:
            if _ENCODER_WITHOUT_USE.search(name):
                continue
            word = _encoder_name(name)
        else:
            if model_type in COMPOSITES and _NO_TEXT.search(name):
                continue
            name_of_text = name
            if model_type in COMPOSITES:
                name_of_text = _HEAD_OF_TEXT.sub("lm_head.", _TEXT.sub("model.", name))
            word = f"model.{name}" if is_bare and _BARE.search(name) else name_of_text
        if word in named:
            raise InvalidCheckpoint(f"two tensors are both {word}: one of them is {name:.100}")
        named[word] = tensor
    return named


def _encoder_name(name: str) -> str:
    for pattern, word in _ENCODER_WORDS:
        name = pattern.sub(word, name)
    return name
