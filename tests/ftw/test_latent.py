"""Settings of latent attention from config.json; imports are compared with transformers in tests/engine."""

from typing import Any

import pytest

from ftd.errors import InvalidCheckpoint, Unsupported
from ftd.ftw.gguf_parts import latent_sizes
from ftd.ftw.latent import hf_settings

# What DeepSeek-V3's own config.json says of these
V3 = {
    "model_type": "deepseek_v3",
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
}


def test_sizes_of_v3() -> None:
    found = hf_settings(V3, "deepseek_v3")
    assert (found["head_dim"], found["rope_interleave"], found["scoring_func"]) == (64, True, "sigmoid")
    letters = latent_sizes({**V3, "num_attention_heads": 128})  # type: ignore[dict-item]
    assert letters == {
        "l": 512,
        "n": 128,
        "u": 128,
        "a": 1536,
        "x": 24576,
        "y": 576,
        "z": 32768,
        "o": 16384,
        "i": 0,
        "j": 0,
        "k": 0,
    }
    assert latent_sizes({"num_attention_heads": 128}) == {}


def test_v2_scores_by_softmax_and_may_have_no_compressed_queries() -> None:
    found = hf_settings(
        V3 | {"q_lora_rank": None, "topk_method": None, "norm_topk_prob": True}, "deepseek_v2"
    )
    assert "q_lora_rank" not in found
    assert (found["scoring_func"], found["norm_topk_prob"], found["topk_method"]) == (
        "softmax",
        False,
        "greedy",
    )


@pytest.mark.parametrize(("kinds", "count"), [(None, 1), (["dense"] * 3 + ["sparse"], 3), (["sparse"], 0)])
def test_dense_layers_of_glm_lite(kinds: list[str] | None, count: int) -> None:
    config = V3 | {"model_type": "glm4_moe_lite", "mlp_layer_types": kinds}
    assert hf_settings(config, "deepseek_v3")["first_k_dense_replace"] == count


@pytest.mark.parametrize(
    ("changes", "model_type", "error", "message"),
    [
        ({"kv_lora_rank": 0}, "deepseek_v3", InvalidCheckpoint, "kv_lora_rank"),
        ({"v_head_dim": None}, "deepseek_v3", InvalidCheckpoint, "v_head_dim"),
        ({"q_lora_rank": True}, "deepseek_v3", InvalidCheckpoint, "q_lora_rank"),
        ({"qk_rope_head_dim": 1 << 40}, "deepseek_v3", InvalidCheckpoint, "qk_rope_head_dim"),
        ({"rope_interleave": 1}, "deepseek_v3", InvalidCheckpoint, "rope_interleave"),
        ({"scoring_func": "softmax"}, "deepseek_v3", Unsupported, "scoring_func"),
        ({"topk_method": "noaux_tc"}, "deepseek_v2", Unsupported, "topk_method"),
        (
            {"model_type": "glm4_moe_lite", "mlp_layer_types": ["sparse", "dense"]},
            "deepseek_v3",
            Unsupported,
            "behind layers with experts",
        ),
    ],
)
def test_refusals(changes: dict[str, Any], model_type: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        hf_settings(V3 | changes, model_type)
