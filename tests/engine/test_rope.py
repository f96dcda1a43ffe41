"""Rotary frequencies are checked against transformers' own initialisers for every scaling rule."""

import warnings
from typing import Any

import numpy as np
import pytest

from ftd.engine import model_config, rope
from ftd.errors import InvalidFtw, Unsupported

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}


def _hyperparameters(**changes: Any) -> dict[str, Any]:
    return {
        "hidden_size": 256,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "vocab_size": 8,
        "max_position_embeddings": 4096,
        "rope_theta": 10000.0,
    } | changes


@pytest.mark.parametrize(
    "scaling",
    [
        None,
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "dynamic", "factor": 4.0},
        LLAMA3,
        YARN,
        YARN | {"beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
        YARN | {"mscale": 1.0, "mscale_all_dim": 0.5},
        YARN | {"attention_factor": 1.25},
    ],
)
def test_frequencies_equal_those_of_transformers(scaling: dict[str, Any] | None) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    values = _hyperparameters(rope_scaling=scaling)
    parameters = {"rope_type": "default", "rope_theta": 10000.0} | (scaling or {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = LlamaRotaryEmbedding(
            LlamaConfig(
                **{k: v for k, v in values.items() if not k.startswith("rope")}, rope_parameters=parameters
            )
        )
    inv_freq, scale = rope.frequencies(model_config.make("llama", values).rope, 4096)
    np.testing.assert_allclose(inv_freq, theirs.inv_freq.numpy(), rtol=2e-6)
    assert scale == pytest.approx(theirs.attention_scaling, rel=1e-9)


@pytest.mark.parametrize(
    ("scaling", "error"),
    [
        ({"rope_type": "longrope"}, Unsupported),
        ({"rope_type": "linear"}, InvalidFtw),
        ({"rope_type": "linear", "factor": -1}, InvalidFtw),
        ({"rope_type": "yarn"}, InvalidFtw),
        (LLAMA3 | {"high_freq_factor": 1.0}, InvalidFtw),
        (LLAMA3 | {"factor": float("inf")}, InvalidFtw),
        (YARN | {"beta_fast": "x"}, InvalidFtw),
        ({"rope_type": "factors", "factors": [1.0] * 31}, InvalidFtw),
        ({"rope_type": "factors", "factors": [0.0] * 32}, InvalidFtw),
    ],
)
def test_bad_scaling_is_refused(scaling: dict[str, Any], error: type[Exception]) -> None:
    config = model_config.make("llama", _hyperparameters(rope_scaling=scaling))
    with pytest.raises(error):
        rope.frequencies(config.rope, 4096)


def test_factors_divide_each_frequency() -> None:
    factors = [1.0 + channel / 4 for channel in range(32)]
    config = model_config.make(
        "llama", _hyperparameters(rope_scaling={"rope_type": "factors", "factors": factors})
    )
    plain = model_config.make("llama", _hyperparameters())
    ours, scale = rope.frequencies(config.rope, 4096)
    np.testing.assert_allclose(ours * factors, rope.frequencies(plain.rope, 4096)[0], rtol=1e-6)
    assert scale == 1.0


def test_a_partial_rotation_has_fewer_frequencies() -> None:
    config = model_config.make("llama", _hyperparameters(partial_rotary_factor=0.5))
    inv_freq, _ = rope.frequencies(config.rope, 4096)
    assert inv_freq.shape == (16,)
