"""ftd.ftw.gguf_families: hyperparameters of files like those of real families, against their config.json."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf_bytes
import pytest

from ftd.errors import InvalidGguf, Unsupported
from ftd.ftw.gguf_families import FAMILIES, family_of, hyperparameters, shortest
from ftd.ftw.gguf_shards import GgufModel

Save = Callable[[str, bytes], Path]


@pytest.fixture
def read(save: Save) -> Callable[..., dict[str, Any]]:
    """Return the hyperparameters of a model whose metadata is changed."""

    def hyper(architecture: str, **more: Any) -> dict[str, Any]:
        metadata, tensors = gguf_bytes.model(architecture, unit=8)
        changes = {f"{architecture}.{key}": value for key, value in more.items()}
        with GgufModel.open([save("m.gguf", gguf_bytes.gguf(metadata | changes, tensors))]) as model:
            family, settings = family_of(model)
            return hyperparameters(family, settings, model)

    return hyper


def test_gemma_3_alternates_windows_and_scales_by_its_head_size(read: Callable[..., dict[str, Any]]) -> None:
    hyper = read("gemma3", **{"block_count": 8})
    assert hyper["layer_types"] == [*["sliding_attention"] * 5, "full_attention", *["sliding_attention"] * 2]
    assert (hyper["sliding_window"], hyper["query_pre_attn_scalar"]) == (16, 8)
    assert (hyper["hidden_act"], hyper["rope_local_base_freq"]) == ("gelu_pytorch_tanh", 10000.0)


def test_gemma_3_27b_scales_by_hidden_over_heads(read: Callable[..., dict[str, Any]]) -> None:
    hyper = read("gemma3", **{"block_count": 62, "attention.head_count": 2, "attention.key_length": 8})
    assert hyper["query_pre_attn_scalar"] == 16


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({"rope.scaling.type": "none"}, None),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        (
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 32768,
            },
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
        ),
    ],
)
def test_rope_scaling(more: dict[str, Any], wanted: Any, read: Callable[..., dict[str, Any]]) -> None:
    assert read("qwen3", **more)["rope_scaling"] == wanted


# What llama.cpp computes of the same settings: tests/engine/test_peer.py
@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({"rope.scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"rope.scale_linear": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"rope.scale_linear": 4.0, "rope.scaling.factor": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        ({"rope.scaling.factor": 4.0, "rope.scaling.type": "none"}, None),
        ({"rope.scaling.type": "linear"}, None),
        ({"rope.scaling.type": "yarn"}, None),
        ({"rope.scaling.type": "yarn", "rope.scaling.factor": 1.0}, None),
    ],
)
def test_files_that_say_half_of_a_rope_scaling(
    more: dict[str, Any], wanted: Any, read: Callable[..., dict[str, Any]]
) -> None:
    assert read("qwen3", **more)["rope_scaling"] == wanted


@pytest.mark.parametrize(
    ("architecture", "key", "value"),
    [
        ("llama", "rope.scaling.attn_factor", 2.0),
        ("qwen3", "rope.scaling.attn_factor", [1.0]),
        ("llama", "attention.causal", False),
        ("gemma3", "final_logit_softcapping", 30.0),
        ("gemma3", "rope.dimension_count_swa", 4),
        ("llama", "rope.freq_base_swa", 20000.0),
        ("llama", "rope.dimension_count", 4),
        ("qwen3", "rope.scaling.type", "longrope"),
    ],
)
def test_settings_that_would_compute_something_else_are_refused(
    architecture: str, key: str, value: Any, read: Callable[..., dict[str, Any]]
) -> None:
    with pytest.raises(Unsupported):
        read(architecture, **{key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope.scaling.attn_factor", 1.0),
        ("attention.causal", True),
        ("final_logit_softcapping", 0.0),
        ("rope.freq_base_swa", 10000.0),
        ("rope.dimension_count_swa", 8),
    ],
)
def test_the_same_settings_are_read_where_they_change_nothing(
    key: str, value: Any, read: Callable[..., dict[str, Any]]
) -> None:
    assert read("llama", **{key: value}) == read("llama")


def test_an_odd_number_of_rotated_channels_is_refused(read: Callable[..., dict[str, Any]]) -> None:
    with pytest.raises(InvalidGguf, match="an odd number of channels rotates: 7"):
        read("qwen3", **{"rope.dimension_count": 7})


def test_key_value_heads_default_to_heads_and_may_be_an_even_array(
    read: Callable[..., dict[str, Any]],
) -> None:
    assert read("llama", **{"attention.head_count_kv": [2, 2]})["num_key_value_heads"] == 2


def test_floats_are_the_shortest_decimals() -> None:
    assert shortest(9.999999747378752e-06) == 1e-05
    assert shortest(500000.0) == 500000.0


@pytest.mark.parametrize("name", FAMILIES)
def test_no_family_lists_a_tensor_twice(name: str) -> None:
    for parts in (FAMILIES[name].outer, FAMILIES[name].layer, FAMILIES[name].recurrent):
        assert len({(part.gguf, part.fused) for part in parts}) == len(parts)
        assert len({part.name for part in parts}) == len(parts)
