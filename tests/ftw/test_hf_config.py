"""ftd.ftw.hf_config: config files as hubs have them, older and newer, against what their families mean."""

from pathlib import Path
from typing import Any

import checkpoint_bytes
import pytest

from ftd.errors import Unsupported
from ftd.ftw.checkpoint import Checkpoint
from ftd.ftw.hf_config import FAMILY_BY_TYPE, family_of, hyperparameters


def read(folder: Path, config: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the hyperparameters of a checkpoint; its tensors are those of a llama model, and more."""
    files = checkpoint_bytes.save(folder / "hf", config, checkpoint_bytes.llama()[1] | more)
    with Checkpoint(files) as checkpoint:
        return hyperparameters(family_of(checkpoint), checkpoint)


SIZES = {
    "vocab_size": 262144,
    "hidden_size": 1152,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "num_hidden_layers": 7,
    "intermediate_size": 6912,
    "max_position_embeddings": 32768,
}


def test_gemma_3_before_layer_types(tmp_path: Path) -> None:
    hyper = read(
        tmp_path,
        {
            **SIZES,
            "model_type": "gemma3_text",
            "head_dim": 256,
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": 256,
            "rope_theta": 1000000,
            "rope_local_base_freq": 10000,
            "sliding_window": 512,
            "sliding_window_pattern": 6,
        },
    )
    assert hyper["layer_types"] == [*["sliding_attention"] * 5, "full_attention", "sliding_attention"]
    assert (hyper["rope_theta"], hyper["rope_local_base_freq"]) == (1e6, 1e4)
    assert (hyper["sliding_window"], hyper["query_pre_attn_scalar"]) == (512, 256)
    assert (hyper["head_dim"], hyper["tie_word_embeddings"]) == (256, True)  # nothing said: no lm_head


def test_mistral_is_llama_with_a_window(tmp_path: Path) -> None:
    config = {**SIZES, "model_type": "mistral", "sliding_window": 4096, "rope_theta": 10000.0}
    hyper = read(tmp_path, config)
    assert (hyper["sliding_window"], hyper["head_dim"]) == (4096, 288)
    assert FAMILY_BY_TYPE["llama"].model_type == "llama"


def test_no_window_is_no_key(tmp_path: Path) -> None:
    for window in (None, 0):
        assert "sliding_window" not in read(
            tmp_path, {**SIZES, "model_type": "qwen2", "sliding_window": window}
        )


def test_gpt_oss_20b(tmp_path: Path) -> None:
    hyper = read(
        tmp_path,
        {
            **SIZES,
            "model_type": "gpt_oss",
            "hidden_size": 2880,
            "intermediate_size": 2880,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "num_local_experts": 32,
            "num_experts_per_tok": 4,
            "experts_per_token": 4,
            "swiglu_limit": 7.0,
            "sliding_window": 128,
            "rope_theta": 150000,
            "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "truncate": False},
            "quantization_config": {"quant_method": "mxfp4"},
        },
    )
    assert (hyper["num_experts"], hyper["num_experts_per_tok"], hyper["moe_intermediate_size"]) == (
        32,
        4,
        2880,
    )
    assert (hyper["norm_topk_prob"], hyper["swiglu_alpha"], hyper["sliding_window"]) == (True, 1.702, 128)
    assert hyper["rope_scaling"] == {"rope_type": "yarn", "factor": 32.0, "truncate": False}
    assert hyper["layer_types"] == ["sliding_attention", "full_attention"] * 3 + ["sliding_attention"]


@pytest.mark.parametrize(("flag", "wanted"), [(True, True), (False, False), (None, False)])
def test_qwen3_moe_says_itself_if_weights_are_divided_by_their_sum(
    tmp_path: Path, flag: bool | None, wanted: bool
) -> None:
    config = {
        **SIZES,
        "model_type": "qwen3_moe",
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "norm_topk_prob": flag,
    }
    hyper = read(tmp_path, config)
    assert (hyper["norm_topk_prob"], hyper["moe_intermediate_size"]) == (wanted, 768)
    assert hyper["intermediate_size"] == 6912


def test_granite_multipliers_default_to_one(tmp_path: Path) -> None:
    config = {
        **SIZES,
        "model_type": "granitemoe",
        "num_local_experts": 40,
        "num_experts_per_tok": 8,
        "logits_scaling": 6.0,
    }
    hyper = read(tmp_path, config)
    names = ("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling")
    assert [hyper[name] for name in names] == [1.0, 1.0, 1.0, 6.0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sliding_window", 4096),
        ("query_pre_attn_scalar", 99),
        ("attention_multiplier", 0.05),
        ("embedding_multiplier", 5.0),
        ("residual_multiplier", 0.2),
        ("logits_scaling", 5.0),
        ("rope_local_base_freq", 77.0),
        ("layer_types", ["sliding_attention"] * 7),
        ("partial_rotary_factor", 1.0),
    ],
)
def test_what_a_family_does_not_know_changes_nothing(name: str, value: Any, tmp_path: Path) -> None:
    llama = {**SIZES, "model_type": "llama"}
    assert read(tmp_path, llama | {name: value}) == read(tmp_path, llama)


@pytest.mark.parametrize(
    ("model_type", "name", "value"),
    [
        ("llama", "is_causal", False),
        ("qwen2", "is_causal", False),
        ("gemma3_text", "use_bidirectional_attention", True),
        ("llama", "partial_rotary_factor", 0.5),
        ("llama", "rope_parameters", {"rope_type": "default", "partial_rotary_factor": 0.5}),
        ("qwen3", "rope_scaling", {"type": "longrope", "factor": 4.0}),
        ("gemma3_text", "rope_parameters", {"full_attention": {"rope_type": "longrope"}}),
        ("llama", "rope_scaling", {"type": "dynamic", "alpha": 1000.0}),
        ("mixtral", "hidden_act", "gelu_pytorch_tanh"),
        ("llama", "clip_qkv", 8.0),
    ],
)
def test_what_would_compute_something_else_is_refused(
    model_type: str, name: str, value: Any, tmp_path: Path
) -> None:
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2} if model_type == "mixtral" else {}
    with pytest.raises(Unsupported):
        read(tmp_path, {**SIZES, **experts, "model_type": model_type, name: value})


def test_swish_is_silu(tmp_path: Path) -> None:
    assert read(tmp_path, {**SIZES, "model_type": "llama", "hidden_act": "swish"})["hidden_act"] == "silu"


def test_a_head_of_other_bytes_than_the_embedding_counts(tmp_path: Path) -> None:
    config = {**SIZES, "model_type": "llama", "tie_word_embeddings": True}
    embedding = checkpoint_bytes.llama()[1]["model.embed_tokens.weight"]
    other = embedding.copy()
    other[-1, -1] ^= 1
    for head, is_tied in ((embedding, True), (other, False), (embedding.astype("float32"), False)):
        assert read(tmp_path, config, **{"lm_head.weight": head})["tie_word_embeddings"] is is_tied
