"""Sizes of recurrent layers against counting their arrays, and settings that cannot be."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftd.engine.hyperparameters import Values
from ftd.engine.recurrent_config import RecurrentConfig, make
from ftd.errors import InvalidFtw, Unsupported

LINEAR, FULL = "linear_attention", "full_attention"
SETTINGS: dict[str, Any] = {
    "layer_types": [LINEAR, FULL, LINEAR],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 40,
    "linear_conv_kernel_dim": 4,
}


def read(**changes: Any) -> RecurrentConfig | None:
    return make(Values(SETTINGS | changes), len((SETTINGS | changes)["layer_types"] or [0, 0, 0]))


def test_settings_are_read() -> None:
    made = read()
    assert made is not None
    assert made.layers == (True, False, True) and not made.tiled
    assert (made.key_heads, made.value_heads, made.key_channels, made.value_channels) == (2, 4, 24, 40)
    assert made.value_size == 160 and made.conv_size == 48 + 48 + 160 and made.taps == 4
    tiled = read(linear_heads_tiled=True)
    assert tiled is not None and tiled.tiled


@pytest.mark.parametrize("kinds", [None, [], [FULL] * 3, ["sliding_attention", FULL, FULL]])
def test_a_model_that_only_attends_has_none(kinds: Any) -> None:
    assert make(Values(SETTINGS | {"layer_types": kinds}), 3) is None


@given(
    st.integers(1, 5), st.integers(1, 4), st.integers(1, 30), st.integers(1, 30), st.integers(2, 8), st.data()
)
def test_bytes_of_a_state_are_those_of_its_arrays(
    key_heads: int, times: int, key: int, value: int, taps: int, data: st.DataObject
) -> None:
    layers = data.draw(st.lists(st.sampled_from((LINEAR, FULL)), max_size=5))
    made = read(
        layer_types=[LINEAR, *layers, FULL],
        linear_num_key_heads=key_heads,
        linear_num_value_heads=key_heads * times,
        linear_key_head_dim=key,
        linear_value_head_dim=value,
        linear_conv_kernel_dim=taps,
    )
    assert made is not None
    total = 0
    for _ in range(1 + layers.count(LINEAR)):
        inputs = [
            np.zeros((taps - 1, heads * width), np.float32)
            for heads, width in ((key_heads, key), (key_heads, key), (key_heads * times, value))
        ]
        total += sum(each.nbytes for each in inputs)
        total += np.zeros((key_heads * times, key, value), np.float32).nbytes
    assert made.state_bytes == total


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        ({"layer_types": [LINEAR] * 3}, Unsupported, "without a layer of attention"),
        ({"linear_num_value_heads": 3}, InvalidFtw, "must be a multiple of linear_num_key_heads: 3, 2"),
        (
            {"linear_num_key_heads": 0},
            InvalidFtw,
            "linear_num_key_heads must be an integer between 1 and 4096: 0",
        ),
        ({"linear_num_value_heads": 8192}, InvalidFtw, "between 1 and 4096: 8192"),
        ({"linear_key_head_dim": None}, InvalidFtw, "hyperparameter is missing: linear_key_head_dim"),
        ({"linear_value_head_dim": 1.5}, InvalidFtw, "linear_value_head_dim must be an integer"),
        (
            {"linear_conv_kernel_dim": 1},
            InvalidFtw,
            "linear_conv_kernel_dim must be an integer between 2 and 16: 1",
        ),
        ({"linear_conv_kernel_dim": 17}, InvalidFtw, "between 2 and 16: 17"),
        ({"linear_heads_tiled": 1}, InvalidFtw, "linear_heads_tiled must be true or false: 1"),
        ({"layer_types": [LINEAR, 3, FULL]}, InvalidFtw, "layer_types must be a list of strings"),
    ],
)
def test_settings_that_cannot_be(changes: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        read(**changes)


def test_every_layer_has_a_kind() -> None:
    with pytest.raises(InvalidFtw, match="layer_types must have one entry a layer: 3 of 4"):
        make(Values(SETTINGS), 4)
