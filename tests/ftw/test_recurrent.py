"""Settings of recurrent families, from config.json and GGUF metadata, against values worked out by hand."""

from typing import Any

import numpy as np
import pytest

from ftd.errors import InvalidCheckpoint, InvalidGguf
from ftd.ftw import recurrent
from ftd.ftw.gguf_parts import Settings

GGUF = {
    "block_count": 6,
    "ssm.time_step_rank": 8,
    "ssm.inner_size": 8 * 16,
    "ssm.group_count": 4,
    "ssm.state_size": 12,
    "ssm.conv_kernel": 4,
}


def from_gguf(tiled: bool = True, **changes: Any) -> dict[str, Any]:
    metadata = {f"x.{key}": value for key, value in (GGUF | changes).items() if value is not None}
    return recurrent.gguf_settings(tiled, lambda settings: {"hidden_act": "silu"})(Settings("x", metadata))


def test_settings_of_a_gguf_file() -> None:
    linear, full = "linear_attention", "full_attention"
    assert from_gguf() == {
        "hidden_act": "silu",
        "layer_types": [linear, linear, linear, full, linear, linear],
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 12,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "linear_heads_tiled": True,
    }
    assert from_gguf(tiled=False)["linear_heads_tiled"] is False
    assert from_gguf(full_attention_interval=2)["layer_types"] == [linear, full] * 3


def test_listed_layers_win_and_drafting_layers_are_left_out() -> None:
    listed = np.array([False, True, True, False, False, False])
    changes = {"attention.recurrent_layers": listed, "nextn_predict_layers": 2, "full_attention_interval": 2}
    kinds = from_gguf(**changes)["layer_types"]
    assert kinds == ["full_attention", "linear_attention", "linear_attention", "full_attention"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ssm.inner_size": 100}, "100 channels do not divide into 8 value heads"),
        ({"ssm.group_count": 3}, "8 value heads do not share 3 key heads"),
        ({"ssm.group_count": None}, "ssm.group_count"),
        ({"ssm.conv_kernel": 0}, "ssm.conv_kernel"),
        ({"attention.recurrent_layers": np.array([True])}, "1 entries for 6 layers"),
        ({"attention.recurrent_layers": np.array([1, 2])}, "no|not an array of bools"),
    ],
)
def test_gguf_settings_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidGguf, match=message):
        from_gguf(**changes)


def test_settings_of_a_config_and_the_defaults_of_its_class() -> None:
    from transformers import Qwen3_5TextConfig, Qwen3NextConfig

    for config in (Qwen3NextConfig(), Qwen3_5TextConfig()):
        found = recurrent.hf_settings({"num_hidden_layers": config.num_hidden_layers})
        assert found["layer_types"] == config.layer_types
        for name in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim", "conv_kernel_dim"):
            assert found[f"linear_{name}"] == getattr(config, f"linear_{name}")
        assert found["partial_rotary_factor"] == config.rope_parameters["partial_rotary_factor"] == 0.25


def test_where_the_rotated_part_stands() -> None:
    layers = {"num_hidden_layers": 4}
    for given in (
        {"partial_rotary_factor": 0.5},
        {"rope_parameters": {"partial_rotary_factor": 0.5}, "partial_rotary_factor": 0.25},
        {"rope_scaling": {"partial_rotary_factor": 0.5}},
    ):
        assert recurrent.hf_settings(layers | given)["partial_rotary_factor"] == 0.5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"full_attention_interval": 0}, "full_attention_interval"),
        ({"layer_types": "linear_attention"}, "layer_types"),
        ({"layer_types": ["linear_attention"] * 3}, "does not fit 4 layers"),
        ({"layer_types": [["linear_attention"]] * 4}, "layer_types"),
        ({"linear_num_value_heads": "8"}, "linear_num_value_heads"),
        ({"linear_num_value_heads": 17}, "no multiple"),
        ({"partial_rotary_factor": 0}, "partial_rotary_factor"),
        ({"partial_rotary_factor": True}, "partial_rotary_factor"),
    ],
)
def test_configs_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidCheckpoint, match=message):
        recurrent.hf_settings({"num_hidden_layers": 4} | changes)
