"""The shapes that are measured are those of the models that they are named after."""

import pytest

from ftd.engine import model_config
from ftd.engine.synthetic_shapes import SHAPES

# Parameters in billions, all and those of one token, as the models' cards or their names say: some of them
# without embeddings, and rounded to a whole number
PUBLISHED = {
    "8b": (8.03, 8.03),
    "30b-a3b": (30.5, 3.3),
    "qwen3.6-35b-a3b": (35.0, 3.0),
    "deepseek-v2-lite": (15.7, 2.4),
    "1.5b": (1.5, 1.5),
}


def billions(name: str) -> tuple[float, float]:
    """Count the weights of matrices, all and those of one token, from the settings alone."""
    _, hyper = SHAPES[name]
    hidden, layers, heads = (
        hyper[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads")
    )
    dense = active = 2 * hyper["vocab_size"] * hidden
    for layer in range(layers):
        if hyper.get("kv_lora_rank"):
            rank, rope = hyper["kv_lora_rank"], hyper["qk_rope_head_dim"]
            nope, value = hyper["qk_nope_head_dim"], hyper["v_head_dim"]
            mixer = hidden * heads * (nope + rope) + hidden * (rank + rope)
            mixer += rank * heads * (nope + value) + heads * value * hidden
        elif hyper.get("layer_types", ["full_attention"] * layers)[layer] == "linear_attention":
            keys = hyper["linear_num_key_heads"] * hyper["linear_key_head_dim"]
            values = hyper["linear_num_value_heads"] * hyper["linear_value_head_dim"]
            mixer = hidden * (2 * keys + 2 * values + 2 * hyper["linear_num_value_heads"]) + values * hidden
        else:
            head_dim = hyper.get("head_dim", hidden // heads)
            gates = 2 if "layer_types" in hyper else 1  # Qwen 3.5's attention has a gate of its queries' size
            mixer = hidden * head_dim * ((1 + gates) * heads + 2 * hyper["num_key_value_heads"])
        experts = hyper.get("num_experts", hyper.get("n_routed_experts", 0))
        if experts and layer >= hyper.get("first_k_dense_replace", 0):
            one = 3 * hidden * hyper["moe_intermediate_size"]
            shared = 3 * hidden * hyper.get("shared_expert_intermediate_size", 0)
            shared += one * hyper.get("n_shared_experts", 0)
            dense += mixer + shared + experts * one
            active += mixer + shared + hyper["num_experts_per_tok"] * one
        else:
            dense += mixer + 3 * hidden * hyper["intermediate_size"]
            active += mixer + 3 * hidden * hyper["intermediate_size"]
    return dense / 1e9, active / 1e9


@pytest.mark.parametrize("name", PUBLISHED)
def test_as_many_parameters_as_the_model_has(name: str) -> None:
    assert billions(name) == pytest.approx(PUBLISHED[name], rel=0.02, abs=0.5)


@pytest.mark.parametrize("name", SHAPES)
def test_a_family_accepts_each_shape(name: str) -> None:
    architecture, hyper = SHAPES[name]
    made = model_config.make(architecture, hyper)
    assert made.hidden_size == hyper["hidden_size"]
    assert (made.experts is not None) == ("num_experts_per_tok" in hyper)
    assert (made.recurrent is not None) == ("linear_attention" in hyper.get("layer_types", []))
