"""Random models of real shapes: values in every format, what layers share, what a config says of them."""

import numpy as np
import pytest

from ftd.engine import model_config
from ftd.engine.synthetic import SHAPES, Synthetic, SyntheticWeights
from ftd.kernels.dequantize_ref import dequantize
from ftd.kernels.quant import FORMATS

SPREAD = 0.02


@pytest.mark.parametrize("format_name", sorted(FORMATS))
def test_values_spread_as_those_of_a_model_and_have_no_mean(format_name: str) -> None:
    """Where a format's codes lean to one side, all outputs of a product move by the sum of its inputs."""
    matrix = SyntheticWeights(format_name, 3).matrix("w", 256, 512)
    assert (matrix.format, matrix.shape) == (format_name, (256, 512))
    values = dequantize(matrix).astype(np.float64)
    assert np.isfinite(values).all()
    assert SPREAD / 2.5 < values.std() < 2.5 * SPREAD
    assert abs(values.mean()) < 0.12 * values.std()
    assert len(np.unique(values)) > 8


def test_rows_of_one_are_norms_and_routers_are_exact() -> None:
    weights = SyntheticWeights("q4_0", 1)
    norm = weights.matrix("model.layers.0.input_layernorm.weight", 1, 64)
    assert norm.format == "f32" and (norm.planes[0] == 1).all()
    assert (weights.matrix("model.layers.0.linear_attn.A", 1, 8).planes[0] == -1).all()
    router = weights.matrix("model.layers.0.mlp.gate.weight", 1, 64)
    assert router.format == "f32" and np.ptp(router.planes[0]) > 0
    odd = weights.matrix("w", 4, 33)
    assert odd.format == "f32", "columns that no block of 32 divides"


def test_the_same_seed_makes_the_same_model() -> None:
    first, second, other = (SyntheticWeights("q8_0", seed).matrix("w", 8, 64) for seed in (4, 4, 5))
    assert [p.tobytes() for p in first.planes] == [p.tobytes() for p in second.planes]
    assert first.planes[0].tobytes() != other.planes[0].tobytes()


def test_layers_are_windows_of_one_array_that_begin_elsewhere() -> None:
    weights = SyntheticWeights("bf16", 1)
    planes = [weights.matrix(f"w{n}", 64, 64).planes[0] for n in range(4)]
    (pool,) = weights._pools.values()
    assert all(np.shares_memory(plane, pool) for plane in planes)
    assert len({plane.tobytes() for plane in planes}) == 4
    assert weights.num_bytes == 4 * 64 * 64 * 2 and len(weights.sizes) == 4


def test_all_layers_share_one_bank() -> None:
    plain = SyntheticWeights("q4_0", 1)
    first, second = plain.bank(0, 4, 64, 32), plain.bank(3, 4, 64, 32)
    assert first.records is second.records and (first.layer, second.layer) == (0, 3)
    assert plain.bank(0, 2, 64, 32).records is not first.records


def test_an_outline_has_shapes_and_no_memory() -> None:
    outline = Synthetic("30b-a3b", "q4_0").outline()
    matrix = outline.matrix("w", 1 << 16, 1 << 14)
    assert matrix.num_bytes == (1 << 30) // 32 * 18 and not matrix.planes[0][::4096].any()
    bank = outline.bank(0, 128, 2048, 768)
    assert bank.num_experts == 128 and not bank.records[::16, ::4096].any()


@pytest.mark.parametrize(
    ("shape", "format_name"), [("tiny-moe", "bf16"), ("30b-a3b", "q4_0"), ("qwen3.6-35b-a3b", "q8_0")]
)
def test_a_config_says_what_the_family_asks_for(shape: str, format_name: str) -> None:
    """Its bytes are those of weights that are then made, and of records of experts."""
    source = Synthetic(shape, format_name)
    config = source.config
    _, hyper = SHAPES[shape]
    model = model_config.make(config.architecture, config.hyperparameters)
    assert model.experts is not None and config.experts is not None
    inner, hidden = hyper["moe_intermediate_size"], hyper["hidden_size"]
    bits = {"bf16": 16, "q4_0": 4.5, "q8_0": 8.5}[format_name]
    record = config.experts.record_bytes
    assert 0 <= record - 3 * inner * hidden * bits / 8 < 4096 + 6 * 64
    num_layers = sum(model.experts.layers)
    assert config.blobs[1].size == record * num_layers * hyper["num_experts"]
    assert [row.layer for row in config.experts.layers] == list(range(num_layers))
    assert config.quantization == format_name.upper()


def test_fewer_layers_are_the_first_ones() -> None:
    whole, part = Synthetic("qwen3.6-35b-a3b", "q4_0"), Synthetic("qwen3.6-35b-a3b", "q4_0", num_layers=4)
    assert part.config.hyperparameters["layer_types"] == whole.config.hyperparameters["layer_types"][:4]
    assert len(part.config.experts.layers) == 4
    assert part.config.blobs[1].size * 10 == whole.config.blobs[1].size
    assert SHAPES["qwen3.6-35b-a3b"][1]["num_hidden_layers"] == 40, "the table is as it was"


def test_a_dense_model_has_no_experts() -> None:
    config = Synthetic("1.5b", "q8_0", num_layers=1).config
    assert config.experts is None and len(config.blobs) == 1
