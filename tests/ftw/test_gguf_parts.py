"""Settings of GGUF files within their bounds, and which tensors a model of given settings must have."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftd.errors import InvalidGguf, Unsupported
from ftd.ftw.gguf_families import FAMILIES
from ftd.ftw.gguf_moe import MOE_FAMILIES
from ftd.ftw.gguf_parts import Family, Settings, expert_layers, latent_sizes, shortest, sizes

HYPER: dict[str, Any] = {
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "vocab_size": 100,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts": 8,
    "shared_expert_intermediate_size": 40,
    "max_position_embeddings": 512,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
}


def settings(**values: Any) -> Settings:
    return Settings("llama", {f"llama.{key}": value for key, value in values.items()}, ["output.weight"])


def test_what_is_set_is_found_under_its_architecture_alone() -> None:
    found = settings(block_count=4)
    assert found.has("block_count") and not found.has("llama.block_count") and not found.has("count")
    assert found.has_tensor("output.weight") and not found.has_tensor("output.bias")


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (1, 1),
        (1 << 24, 1 << 24),
        (np.array([8, 8, 8], np.uint32), 8),
        (np.array([7], np.int64), 7),
    ],
)
def test_integers(value: Any, number: int) -> None:
    assert settings(n=value).integer("n") == number


@pytest.mark.parametrize(
    "value", [0, -1, (1 << 24) + 1, True, 1.0, "8", None, np.array([0, 0]), np.array([1 << 40])]
)
def test_integers_out_of_bounds(value: Any) -> None:
    with pytest.raises(InvalidGguf, match=r"llama\.n is not between 1 and 16777216: "):
        settings(n=value).integer("n")


@pytest.mark.parametrize("value", [np.array([8, 4]), np.array([], np.int32), np.array([2.0, 2.0])])
def test_integers_that_differ_between_layers(value: Any) -> None:
    with pytest.raises(Unsupported, match=r"llama\.n differs between layers"):
        settings(n=value).integer("n")


def test_defaults_are_for_what_is_absent() -> None:
    empty = settings()
    assert empty.integer("n", 5) == 5 and empty.integer("n", 0, low=0) == 0
    assert empty.number("x", 0.5) == 0.5 and empty.flag("f", True) and empty.text("t", "none") == "none"
    assert empty.flags("f") is None
    with pytest.raises(InvalidGguf, match=r"llama\.n is not between 1 and 9: None"):
        empty.integer("n", high=9)
    with pytest.raises(InvalidGguf, match=r"llama\.x is not a positive number: None"):
        empty.number("x")


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), 1e30, "1", True, None])
def test_numbers_are_positive_and_finite(value: Any) -> None:
    with pytest.raises(InvalidGguf, match=r"llama\.x is not a positive number"):
        settings(x=value).number("x", value)


@pytest.mark.parametrize(("read", "value"), [("flag", 1), ("flag", "true"), ("text", 1), ("text", b"x")])
def test_other_types(read: str, value: Any) -> None:
    with pytest.raises(InvalidGguf, match=r"llama\.v is not a "):
        getattr(settings(v=value), read)("v", None)


def test_arrays_of_flags() -> None:
    assert settings(f=np.array([True, False])).flags("f") == [True, False]
    assert settings(f=[True]).flags("f") == [True]
    for value in (np.array([1, 0]), [1], "no", 3):
        with pytest.raises(InvalidGguf, match=r"llama\.f is not an array of bools"):
            settings(f=value).flags("f")


@given(st.floats(width=32, min_value=2**-100, max_value=2**90))
def test_shortest_is_the_same_float32_in_fewer_digits(value: float) -> None:
    assert np.float32(shortest(value)) == np.float32(value)
    assert shortest(9.999999747378752e-06) == 1e-05


ALL = {made.model_type: made for made in (*FAMILIES.values(), *MOE_FAMILIES.values())}


def family(model_type: str) -> Family:
    return ALL[model_type]


@pytest.mark.parametrize(
    ("hyper", "layers"),
    [
        ({}, [0, 1, 2, 3]),
        ({"first_k_dense_replace": 1}, [1, 2, 3]),
        ({"first_k_dense_replace": 9}, []),
        ({"decoder_sparse_step": 2}, [1, 3]),
        ({"decoder_sparse_step": 4, "mlp_only_layers": [3]}, []),
        ({"mlp_only_layers": [0, 2, 99]}, [1, 3]),
        ({"first_k_dense_replace": 2, "decoder_sparse_step": 2, "mlp_only_layers": [1]}, [3]),
    ],
)
def test_which_layers_have_experts(hyper: dict[str, Any], layers: list[int]) -> None:
    assert expert_layers(family("qwen3_moe"), HYPER | hyper) == layers
    assert expert_layers(family("llama"), HYPER | hyper) == []


@pytest.mark.parametrize("made", ALL.values(), ids=ALL)
def test_embeddings_first_then_layers_then_the_rest(made: Family) -> None:
    """The order of a step: what is read from the disk first is needed first."""
    wanted = list(made.wanted(HYPER | {"mlp_only_layers": [1] if made.dense else []}))
    layers = [layer for layer, _ in wanted]
    inner = [layer for layer in layers if layer is not None]
    first = layers.index(0)
    assert inner == sorted(inner) and set(inner) == {0, 1, 2, 3}
    assert layers[first : first + len(inner)] == inner, "nothing else comes between layers"
    assert all(part.name.startswith("model.embed") for _, part in wanted[:first])
    assert not any(part.name.startswith("model.embed") for _, part in wanted[first:])
    names = [(layer, part.name, part.gguf, part.fused) for layer, part in wanted]
    assert len(set(names)) == len(names), "no tensor twice"


def test_layers_take_the_parts_of_their_kind() -> None:
    hybrid = family("qwen3_next")
    by_layer: dict[int, set[str]] = {}
    for layer, part in hybrid.wanted(HYPER):
        if layer is not None:
            by_layer.setdefault(layer, set()).add(part.name)
    assert all(any("linear_attn" in name for name in by_layer[layer]) for layer in (0, 1, 2))
    assert not any("linear_attn" in name for name in by_layer[3])
    assert any("self_attn.q_proj" in name for name in by_layer[3])
    mixed = family("qwen3_moe")
    dense = {part.name for layer, part in mixed.wanted(HYPER | {"mlp_only_layers": [2]}) if layer == 2}
    sparse = {part.name for layer, part in mixed.wanted(HYPER) if layer == 2}
    assert "mlp.gate_proj.weight" in dense and "mlp.gate.weight" not in dense
    assert "mlp.gate.weight" in sparse and "mlp.gate_proj.weight" not in sparse


LATENT = {
    "kv_lora_rank": 20,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 12,
    "v_head_dim": 10,
    "index_n_heads": 3,
    "index_head_dim": 8,
}
RECURRENT = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 6,
    "linear_conv_kernel_dim": 4,
}


@pytest.mark.parametrize("made", ALL.values(), ids=ALL)
def test_every_letter_of_a_shape_stands_for_a_size(made: Family) -> None:
    letters = sizes(made, HYPER | LATENT | RECURRENT | {"type_vocab_size": 2})
    parts = [*made.outer, *made.layer, *made.dense, *made.recurrent, *made.experts]
    for part in parts:
        assert 1 <= len(part.shape) <= 3
        assert all(letters[letter] >= 1 for letter in part.shape), part


def test_letters_of_attention_by_hand() -> None:
    letters = sizes(family("llama"), HYPER)
    assert (letters["D"], letters["F"], letters["V"], letters["C"]) == (64, 96, 100, 16)
    assert (letters["Q"], letters["W"], letters["3"], letters["P"]) == (96, 32, 288, 512)
    moe = sizes(family("qwen3_moe"), HYPER)
    assert (moe["F"], moe["I"], moe["E"], moe["S"]) == (32, 96, 8, 40)
    assert latent_sizes(HYPER) == {}
    latent = latent_sizes(HYPER | LATENT)
    # queries of 6 heads of 12 + 4 channels; latent and rotated key; 12 + 10 channels of keys and values
    assert (latent["x"], latent["y"], latent["z"], latent["o"]) == (96, 24, 132, 60)
    net = sizes(family("qwen3_next"), HYPER | RECURRENT)
    assert (net["A"], net["B"], net["K"]) == (2 * 2 * 8 + 4 * 6, 24, 4)
