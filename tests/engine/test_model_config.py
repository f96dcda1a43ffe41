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
        ("qwen3", {"layer_types": ["full_attention"] * 30}, (0,) * 30),
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
        ({"layer_types": ["sliding_attention"] * 30}, InvalidFtw, "sliding_window is not given"),
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


MOE: dict[str, Any] = SMOLLM2 | {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}


def test_experts_of_each_spelling() -> None:
    experts = model_config.make("qwen3_moe", MOE | {"decoder_sparse_step": 2, "mlp_only_layers": [3]}).experts
    assert experts is not None
    assert (experts.num_experts, experts.num_chosen, experts.inner_size) == (8, 2, 64)
    assert (experts.scoring, experts.renormalise, experts.activation) == ("softmax", False, "silu")
    assert [layer for layer in range(8) if experts.layers[layer]] == [1, 5, 7]
    mixtral = model_config.make(
        "mixtral", SMOLLM2 | {"num_local_experts": 4, "num_experts_per_tok": 2}
    ).experts
    assert mixtral is not None and mixtral.inner_size == 1536 and mixtral.renormalise
    values = MOE | {"num_experts": None, "n_routed_experts": 16, "n_group": 4, "topk_group": 2}
    glm = model_config.make("glm4_moe", values | {"n_shared_experts": 2, "first_k_dense_replace": 1}).experts
    assert glm is not None and (glm.scoring, glm.shared_size, glm.layers[:2]) == (
        "sigmoid",
        128,
        (False, True),
    )
    oss = model_config.make("gpt_oss", MOE | {"swiglu_limit": 7.0, "swiglu_alpha": 1.702}).experts
    assert oss is not None and (oss.activation, oss.limit) == ("clamped", 7.0)
    assert model_config.make("llama", MOE).experts is None


@pytest.mark.parametrize(
    ("changes", "error", "word"),
    [
        ({"num_experts": None}, InvalidFtw, "num_experts"),
        ({"num_experts": 1 << 17}, InvalidFtw, "num_experts"),
        ({"num_experts": True}, InvalidFtw, "num_experts"),
        ({"num_experts_per_tok": 9}, InvalidFtw, "can be chosen: 9"),
        ({"n_group": 3}, InvalidFtw, "8 3 1"),
        ({"n_group": 2, "topk_group": 3}, InvalidFtw, "8 2 3"),
        ({"n_group": 8, "topk_group": 1}, InvalidFtw, "can be chosen: 2"),
        ({"moe_intermediate_size": 0}, InvalidFtw, "moe_intermediate_size"),
        ({"scoring_func": "tanh"}, Unsupported, "tanh"),
        ({"swiglu_alpha": 2.0}, Unsupported, "swiglu_alpha"),
        ({"mlp_only_layers": 3}, InvalidFtw, "mlp_only_layers"),
        ({"norm_topk_prob": 1}, InvalidFtw, "norm_topk_prob"),
        ({"clip_qkv": 8.0}, Unsupported, "clip_qkv"),
        ({"logits_scaling": 0}, InvalidFtw, "logits_scaling"),
    ],
)
def test_experts_that_cannot_be_are_refused(
    changes: dict[str, Any], error: type[Exception], word: str
) -> None:
    with pytest.raises(error, match=word):
        model_config.make("qwen3_moe", MOE | changes)
