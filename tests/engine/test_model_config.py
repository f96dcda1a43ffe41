"""ModelConfig is checked against hand-written configs and against every way a hostile one can lie."""

from typing import Any

import pytest

from ftd.engine import model_config
from ftd.errors import InvalidFtw, Unsupported

SMOLLM2: dict[str, Any] = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "rope_scaling": None,
    "tie_word_embeddings": True,
}


def test_smollm2_sizes() -> None:
    config = model_config.make("llama", SMOLLM2)
    assert (config.head_dim, config.num_kv_heads, config.rope.dim, config.rope.theta) == (64, 3, 64, 100000.0)
    assert config.windows == (0,) * 30
    assert config.kv_bytes_per_token(2) == 2 * 30 * 3 * 64 * 2


def test_rope_parameters_of_newer_configs_are_read() -> None:
    values = SMOLLM2 | {
        "rope_theta": None,
        "rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2},
    }
    rope = model_config.make("llama", values).rope
    assert (rope.theta, rope.kind, rope.parameters["factor"]) == (5e5, "linear", 2)


def test_older_and_newer_configs_name_the_rotation_of_windows_differently() -> None:
    older = model_config.make("gemma3_text", SMOLLM2 | {"rope_local_base_freq": 1e4})
    both = {"full_attention": {"rope_theta": 1e5}, "sliding_attention": {"rope_theta": 1e4}}
    newer = model_config.make("gemma3_text", SMOLLM2 | {"rope_parameters": both})
    assert older.local_rope is not None and newer.local_rope is not None
    assert (
        (older.rope.theta, older.local_rope.theta) == (newer.rope.theta, newer.local_rope.theta) == (1e5, 1e4)
    )


@pytest.mark.parametrize(
    ("architecture", "changes", "windows"),
    [
        ("mistral", {"sliding_window": 7}, (7,) * 30),
        ("qwen2", {"sliding_window": 7, "use_sliding_window": False}, (0,) * 30),
        (
            "qwen2",
            {"sliding_window": 7, "use_sliding_window": True, "max_window_layers": 28},
            (0,) * 28 + (7, 7),
        ),
        (
            "qwen3",
            {"sliding_window": 7, "layer_types": ["full_attention"] * 29 + ["sliding_attention"]},
            (0,) * 29 + (7,),
        ),
    ],
)
def test_attention_windows(architecture: str, changes: dict[str, Any], windows: tuple[int, ...]) -> None:
    assert model_config.make(architecture, SMOLLM2 | changes).windows == windows


@pytest.mark.parametrize(
    "name", ["hidden_size", "num_hidden_layers", "vocab_size", "max_position_embeddings"]
)
@pytest.mark.parametrize("value", [None, 0, -1, 2**63, "576", 5.5, True, [1]])
def test_bad_sizes_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InvalidFtw, match=name):
        model_config.make("llama", SMOLLM2 | {name: value})


@pytest.mark.parametrize(
    ("changes", "error", "word"),
    [
        ({"num_key_value_heads": 2}, InvalidFtw, "9, 2"),
        ({"num_attention_heads": 7, "num_key_value_heads": 7}, InvalidFtw, "576, 7"),
        ({"head_dim": 63}, InvalidFtw, "63"),
        ({"rms_norm_eps": float("nan")}, InvalidFtw, "rms_norm_eps"),
        ({"rope_theta": 0.5}, InvalidFtw, "rope_theta"),
        ({"rope_scaling": "llama3"}, InvalidFtw, "rope_scaling"),
        ({"rope_scaling": {"rope_type": 3}}, InvalidFtw, "rope_type"),
        ({"partial_rotary_factor": 0.01}, InvalidFtw, "rotated"),
        ({"tie_word_embeddings": "no"}, InvalidFtw, "tie_word_embeddings"),
        ({"layer_types": ["full_attention"]}, InvalidFtw, "1 of 30"),
        ({"layer_types": ["linear_attention"] * 30}, Unsupported, "linear_attention"),
        ({"hidden_act": "gelu"}, Unsupported, "gelu"),
        ({"mlp_bias": True}, Unsupported, "mlp_bias"),
        ({"final_logit_softcapping": 30.0}, Unsupported, "final_logit_softcapping"),
        ({"query_pre_attn_scalar": 0}, InvalidFtw, "query_pre_attn_scalar"),
        ({"rope_local_base_freq": "x"}, InvalidFtw, "rope_local_base_freq"),
    ],
)
def test_contradictions_are_refused(changes: dict[str, Any], error: type[Exception], word: str) -> None:
    with pytest.raises(error, match=word):
        model_config.make("llama", SMOLLM2 | changes)
