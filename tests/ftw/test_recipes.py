"""What is quantised to what: mixtures against the types that llama-quantize gave to the same tensors."""

import json
from pathlib import Path

import pytest

from ftd.errors import Unsupported
from ftd.ftw.recipes import FORMATS_BY_NAME, MIXTURES, QUANTIZED, Recipe, check_name, recipe, target

# "experts tied mixture" -> tensors of a llama of 10 layers and 256 channels that are not of the mixture's own
# format, as llama-quantize (llama.cpp b11434) writes them
GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "mixtures.json").read_text())
LAYERS = 10
ATTENTION = {"attn_q": "q_proj", "attn_k": "k_proj", "attn_v": "v_proj", "attn_output": "o_proj"}


@pytest.mark.parametrize("case", sorted(GOLDEN))
def test_mixtures_are_those_of_llama_quantize(case: str) -> None:
    experts, tied, name = case.split()
    found = {}
    for layer in range(LAYERS):
        made = recipe(name, layer, LAYERS, int(experts), tied == "1")
        for theirs, ours in ATTENTION.items():
            found[f"blk.{layer}.{theirs}.weight"] = target(f"self_attn.{ours}.weight", "f32", 256, made)
        for role in ("gate", "up", "down"):
            if experts == "0":
                found[f"blk.{layer}.ffn_{role}.weight"] = target(f"mlp.{role}_proj.weight", "f32", 256, made)
            else:
                found[f"blk.{layer}.ffn_{role}_exps.weight"] = target(role, "f32", 256, made)
    outside = recipe(name, None, LAYERS, int(experts), tied == "1")
    found["token_embd.weight"] = target("model.embed_tokens.weight", "f32", 256, outside)
    if tied == "0":
        found["output.weight"] = target("lm_head.weight", "f32", 256, outside)
    other = {tensor: format for tensor, format in found.items() if format != MIXTURES[name]}
    assert other == dict(part.split("=") for part in GOLDEN[case].split())


@pytest.mark.parametrize(
    ("name", "columns", "quantization", "wanted"),
    [
        ("model.layers.0.self_attn.q_proj.weight", 64, "q4_0", "q4_0"),
        ("model.layers.0.self_attn.q_proj.weight", 64, None, "bf16"),
        ("model.layers.0.self_attn.q_proj.weight", 33, "q4_0", "bf16"),
        ("model.layers.0.mlp.gate.weight", 64, "q4_0", "bf16"),
        ("model.layers.0.mlp.gate.weight", 256, "q4_k_m", "bf16"),
        ("model.layers.0.mlp.gate_proj.weight", 64, "q4_0", "q4_0"),
        ("model.embed_tokens.weight", 64, "q4_0", "q8_0"),
        ("lm_head.weight", 64, "q4_0", "q8_0"),
        ("lm_head.weight", 64, "q4_k_m", "q8_0"),
        ("gate", 64, "q4_0", "q4_0"),
        ("gate", 512, "q4_k", "q4_k"),
        ("gate", 2880, "q4_k", "q5_0"),
        ("gate", 2880, "q5_k", "q5_1"),
        ("gate", 2880, "q6_k", "q8_0"),
        ("gate", 2880, "mxfp4", "mxfp4"),
        ("down", 2880, "q4_k_m", "q8_0"),
        ("down", 512, "q4_k_m", "q6_k"),
    ],
)
def test_what_is_quantised(name: str, columns: int, quantization: str | None, wanted: str) -> None:
    assert target(name, "bf16", columns, recipe(quantization, 0, 8, 4, True)) == wanted


def test_one_format_is_a_recipe_for_all() -> None:
    for name in FORMATS_BY_NAME:
        assert recipe(name, 3, 8, 8, True) == recipe(name, None, 8, 0, False) == Recipe(name)


def test_only_names_of_formats_and_mixtures_are_taken() -> None:
    check_name(None)
    for name in QUANTIZED:
        check_name(name)
    for call in (check_name, lambda name: recipe(name, 0, 1, 0, True)):
        with pytest.raises(Unsupported, match="quantisation is not supported: q3_k"):
            call("q3_k")
