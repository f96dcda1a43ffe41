"""Settings of mixtures of experts in Hugging Face's words, and what their files may not say."""

from typing import Any

import pytest

from ftd.errors import InvalidGguf, Unsupported
from ftd.ftw.gguf_moe import MOE_FAMILIES
from ftd.ftw.gguf_parts import Settings

ROUTED = {"expert_count": 8, "expert_used_count": 2, "feed_forward_length": 96}
SHAPE = {"embedding_length": 64, "attention.head_count": 4, "block_count": 3, "attention.sliding_window": 128}


def extra(architecture: str, tensors: tuple[str, ...] = (), **values: Any) -> dict[str, Any]:
    """Return the settings that a family reads beside those of all models."""
    fields = {f"{architecture}.{key.replace('__', '.')}": value for key, value in values.items()}
    return MOE_FAMILIES[architecture].extra(Settings(architecture, fields, tensors))


@pytest.mark.parametrize(
    ("architecture", "is_normalised"),
    [("llama", True), ("qwen2moe", False), ("qwen3moe", True), ("olmoe", False), ("granitemoe", True)],
)
def test_whether_weights_of_experts_sum_to_one(architecture: str, is_normalised: bool) -> None:
    """Each family has its own default, and a file may say otherwise."""
    assert extra(architecture, **ROUTED, **SHAPE)["norm_topk_prob"] is is_normalised
    said = extra(architecture, **ROUTED, **SHAPE, expert_weights_norm=not is_normalised)
    assert said["norm_topk_prob"] is not is_normalised


def test_sizes_of_experts_are_their_own_where_a_file_says_them() -> None:
    plain = extra("qwen3moe", **ROUTED)
    assert (plain["num_experts"], plain["num_experts_per_tok"]) == (8, 2)
    assert plain["moe_intermediate_size"] == 96 and "shared_expert_intermediate_size" not in plain
    own = extra("qwen3moe", **ROUTED, expert_feed_forward_length=32, expert_shared_feed_forward_length=48)
    assert (own["moe_intermediate_size"], own["shared_expert_intermediate_size"]) == (32, 48)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"expert_used_count": 9}, "a token uses 9 of 8 experts"),
        ({"expert_used_count": 0}, "expert_used_count is not between 1 and"),
        ({"expert_count": 0}, "expert_count is not between 1 and"),
        ({"expert_count": 1 << 20}, "expert_count is not between 1 and"),
        ({"expert_count": None}, "expert_count is not between 1 and"),
        ({"expert_feed_forward_length": 0}, "expert_feed_forward_length is not between 1 and"),
        ({"expert_weights_norm": 1}, "expert_weights_norm is not a bool"),
    ],
)
def test_routing_that_cannot_be(values: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidGguf, match=text):
        extra("qwen3moe", **ROUTED | values)


def test_granite_multiplies() -> None:
    made = extra("granitemoe", **ROUTED, **SHAPE)
    assert made["attention_multiplier"] == pytest.approx(16**-0.5)
    assert (made["embedding_multiplier"], made["residual_multiplier"], made["logits_scaling"]) == (1, 1, 1)
    said = extra("granitemoe", **ROUTED, **SHAPE, attention__scale=0.015625, logit_scale=8.0)
    assert (said["attention_multiplier"], said["logits_scaling"]) == (0.015625, 8.0)
    with pytest.raises(InvalidGguf, match="residual_scale is not a positive number"):
        extra("granitemoe", **ROUTED, **SHAPE, residual_scale=0.0)


def test_gpt_oss_slides_in_every_other_layer() -> None:
    made = extra("gpt-oss", **ROUTED, **SHAPE)
    assert made["layer_types"] == ["sliding_attention", "full_attention", "sliding_attention"]
    assert (made["sliding_window"], made["swiglu_limit"], made["swiglu_alpha"]) == (128, 7.0, 1.702)
    assert {part.role for part in MOE_FAMILIES["gpt-oss"].experts} == {
        *("gate", "up", "down", "gate_bias", "up_bias", "down_bias")
    }


def test_glm_scores_by_a_sigmoid_alone() -> None:
    grouped = {"expert_feed_forward_length": 32, "expert_shared_count": 2, "leading_dense_block_count": 0}
    made = extra("glm4moe", **ROUTED, **grouped, expert_gating_func=2, expert_weights_scale=2.5)
    assert made["shared_expert_intermediate_size"] == 64 and made["first_k_dense_replace"] == 0
    assert made["routed_scaling_factor"] == 2.5 and made["use_qk_norm"] is False
    assert extra("glm4moe", ("blk.0.attn_q_norm.weight",), **ROUTED, **grouped)["use_qk_norm"] is True
    with pytest.raises(Unsupported, match="gating function of experts: 1"):
        extra("glm4moe", **ROUTED, **grouped, expert_gating_func=1)


def test_groups_are_said_only_where_there_are_any() -> None:
    values = {"expert_feed_forward_length": 32, "expert_gating_func": 2}
    assert not extra("glm4moe", **ROUTED, **values).keys() & {
        "n_group",
        "topk_group",
        "first_k_dense_replace",
    }
    made = extra("glm4moe", **ROUTED, **values, expert_group_count=4, expert_group_used_count=2)
    assert (made["n_group"], made["topk_group"]) == (4, 2)


@pytest.mark.parametrize("architecture", MOE_FAMILIES)
def test_every_family_has_a_router_and_gate_up_and_down_of_its_experts(architecture: str) -> None:
    family = MOE_FAMILIES[architecture]
    roles = {part.role: part.shape for part in family.experts}
    assert (roles["gate"], roles["up"], roles["down"]) == ("FD", "FD", "DF")
    for parts in filter(None, (family.layer, family.recurrent)):
        (router,) = (part for part in parts if part.name == "mlp.gate.weight")
        assert router.required and router.shape == "ED"
    assert not any(part.name.startswith("mlp.gate.") for part in family.dense)
    if family.dense:
        assert {"mlp.gate_proj.weight", "mlp.down_proj.weight"} <= {part.name for part in family.dense}
