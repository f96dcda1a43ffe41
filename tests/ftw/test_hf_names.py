"""Names of tensors, typed by hand from published checkpoints (MiniLM, Nomic, Qwen3-Embedding, early BERT)."""

import pytest

from ftd.errors import InvalidCheckpoint
from ftd.ftw.hf_names import canonical


@pytest.mark.parametrize(
    ("model_type", "name", "word"),
    [
        ("bert", "embeddings.word_embeddings.weight", "model.embed_tokens.weight"),
        ("bert", "bert.embeddings.LayerNorm.gamma", "model.embed_norm.weight"),
        ("bert", "bert.embeddings.LayerNorm.beta", "model.embed_norm.bias"),
        ("bert", "embeddings.position_embeddings.weight", "model.embed_positions.weight"),
        ("bert", "embeddings.token_type_embeddings.weight", "model.embed_types.weight"),
        ("bert", "encoder.layer.11.attention.self.key.bias", "model.layers.11.self_attn.k_proj.bias"),
        ("bert", "encoder.layer.0.attention.output.dense.weight", "model.layers.0.self_attn.o_proj.weight"),
        (
            "bert",
            "encoder.layer.0.attention.output.LayerNorm.weight",
            "model.layers.0.post_attention_layernorm.weight",
        ),
        ("bert", "encoder.layer.0.intermediate.dense.bias", "model.layers.0.mlp.up_proj.bias"),
        ("bert", "encoder.layer.0.output.dense.weight", "model.layers.0.mlp.down_proj.weight"),
        (
            "bert",
            "encoder.layer.0.output.LayerNorm.bias",
            "model.layers.0.post_feedforward_layernorm.bias",
        ),
        ("nomic_bert", "emb_ln.weight", "model.embed_norm.weight"),
        ("nomic_bert", "encoder.layers.3.attn.Wqkv.weight", "model.layers.3.self_attn.qkv_proj.weight"),
        ("nomic_bert", "encoder.layers.3.mlp.fc12.weight", "model.layers.3.mlp.gate_proj.weight"),
        ("llama", "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
    ],
)
def test_words(model_type: str, name: str, word: str) -> None:
    assert canonical({name: 7}, model_type) == {word: 7}


def test_what_stands_beside_an_encoder_has_no_use() -> None:
    names = [
        "pooler.dense.weight",
        "bert.pooler.dense.bias",
        "cls.predictions.bias",
        "embeddings.position_ids",
    ]
    assert canonical(dict.fromkeys(names, 1), "bert") == {}


def test_a_bare_decoder_gets_its_prefix() -> None:
    found = canonical(
        {"embed_tokens.weight": 1, "layers.0.x": 2, "norm.weight": 3, "lm_head.weight": 4}, "qwen3"
    )
    assert found == {
        "model.embed_tokens.weight": 1,
        "model.layers.0.x": 2,
        "model.norm.weight": 3,
        "lm_head.weight": 4,
    }


def test_two_names_for_one_thing_are_refused() -> None:
    with pytest.raises(InvalidCheckpoint, match=r"two tensors are both model\.embed_norm\.weight"):
        canonical({"embeddings.LayerNorm.weight": 1, "embeddings.LayerNorm.gamma": 2}, "bert")
