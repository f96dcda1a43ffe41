"""Settings of encoders; their tensors are tested through imports in tests/engine/models/test_bert.py."""

from typing import Any

import pytest

from ftd.errors import InvalidCheckpoint, Unsupported
from ftd.ftw.encoders import hf_settings, renamed

# What nomic-ai's own config.json says, in GPT-2's words
NOMIC = {
    "model_type": "nomic_bert",
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_inner": 3072,
    "n_positions": 8192,
    "max_trained_positions": 2048,
    "layer_norm_epsilon": 1e-12,
    "rotary_emb_base": 1000,
}


def test_nomic_speaks_in_the_words_of_gpt2() -> None:
    found = renamed(NOMIC)
    assert (found["hidden_size"], found["num_hidden_layers"], found["intermediate_size"]) == (768, 12, 3072)
    assert (found["max_position_embeddings"], found["layer_norm_eps"], found["rope_theta"]) == (
        2048,
        1e-12,
        1000,
    )
    assert renamed({"model_type": "bert", "n_embd": 3}) == {"model_type": "bert", "n_embd": 3}


def test_defaults_are_those_of_the_families() -> None:
    assert hf_settings({"model_type": "bert"}) == {
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "type_vocab_size": 2,
    }
    assert hf_settings({"model_type": "nomic_bert"})["hidden_act"] == "silu"


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ({"position_embedding_type": "relative_key"}, Unsupported, "relative_key"),
        ({"is_decoder": True}, Unsupported, "decoder"),
        ({"hidden_act": "silu"}, Unsupported, "hidden_act of bert must be gelu: 'silu'"),
        ({"model_type": "nomic_bert", "hidden_act": "gelu"}, Unsupported, "nomic_bert must be silu: 'gelu'"),
        ({"prenorm": True}, Unsupported, "prenorm"),
        ({"rotary_emb_interleaved": True}, Unsupported, "interleaved"),
        ({"rotary_emb_fraction": 0.5}, Unsupported, "fraction"),
        ({"layer_norm_eps": 2}, InvalidCheckpoint, "layer_norm_eps"),
        ({"type_vocab_size": 0}, InvalidCheckpoint, "type_vocab_size"),
        ({"type_vocab_size": True}, InvalidCheckpoint, "type_vocab_size"),
    ],
)
def test_what_changes_the_computation_is_refused(
    config: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        hf_settings({"model_type": "bert", **config})
