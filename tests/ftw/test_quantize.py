"""ftd.ftw.quantize against the ``gguf`` package, whose quantisers are bit for bit those of ggml."""

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ftd.errors import InvalidCheckpoint
from ftd.ftw.quantize import as_f32, quantize, target

BLOCK_BYTES = {"q8_0": 34, "q4_0": 18}


def reference(rows: NDArray[np.float32], format: str) -> tuple[NDArray[np.uint8], NDArray[np.float16]]:
    """Return codes (as bytes) and scales of the gguf package."""
    raw = gguf.quantize(rows, gguf.GGMLQuantizationType[format.upper()]).reshape(-1, BLOCK_BYTES[format])
    codes = np.ascontiguousarray(raw[:, 2:]).reshape(len(rows), -1)
    return codes, np.ascontiguousarray(raw[:, :2]).view(np.float16).reshape(len(rows), -1)


@pytest.mark.parametrize("format", BLOCK_BYTES)
@given(seed=st.integers(0, 2**32), rows=st.integers(1, 5), blocks=st.integers(1, 4), scale=st.integers(-8, 4))
@settings(max_examples=60, deadline=None)
def test_codes_and_scales_are_those_of_the_reference(
    format: str, seed: int, rows: int, blocks: int, scale: int
) -> None:
    random = np.random.default_rng(seed)
    values = (random.normal(size=(rows, blocks * 32)) * 10.0**scale).astype(np.float32)
    values[random.random(values.shape) < 0.1] = 0
    ours = quantize(values, format)
    codes, scales = reference(values, format)
    assert ours.planes[0].view(np.uint8).tobytes() == codes.tobytes()
    assert ours.planes[1].tobytes() == scales.tobytes()


@pytest.mark.parametrize("format", BLOCK_BYTES)
@pytest.mark.parametrize(
    "block",
    [
        np.zeros(32),
        np.full(32, -1.0),
        np.full(32, 1e-40),
        np.arange(32) - 16.0,
        np.where(np.arange(32) == 5, -3.0, 3.0),
        np.linspace(-127, 127, 32) / 127 + 0.5 / 127,
    ],
)
def test_blocks_that_hurt(format: str, block: NDArray[np.float64]) -> None:
    values = block.astype(np.float32).reshape(1, 32)
    ours = quantize(values, format)
    with np.errstate(over="ignore", invalid="ignore"):
        codes, scales = reference(values, format)
    assert ours.planes[0].view(np.uint8).tobytes() == codes.tobytes()
    assert ours.planes[1].tobytes() == scales.tobytes()


@pytest.mark.parametrize("format", BLOCK_BYTES)
@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_what_no_scale_can_hold_is_refused(format: str, value: float) -> None:
    values = np.ones((1, 32), np.float32)
    values[0, 3] = value
    with pytest.raises(InvalidCheckpoint):
        quantize(values, format)


def test_bf16_as_u16_becomes_f32_exactly() -> None:
    assert as_f32(np.array([[0x3F80, 0xC000]], np.uint16)).tolist() == [[1.0, -2.0]]
    assert as_f32(np.array([[1.5]], np.float16)).tolist() == [[1.5]]


@pytest.mark.parametrize(
    ("name", "columns", "quantization", "wanted"),
    [
        ("model.layers.0.self_attn.q_proj.weight", 64, "q4_0", "q4_0"),
        ("model.layers.0.self_attn.q_proj.weight", 64, None, "bf16"),
        ("model.layers.0.self_attn.q_proj.weight", 33, "q4_0", "bf16"),
        ("model.layers.0.mlp.gate.weight", 64, "q4_0", "bf16"),
        ("model.layers.0.mlp.gate_proj.weight", 64, "q4_0", "q4_0"),
        ("model.embed_tokens.weight", 64, "q4_0", "q8_0"),
        ("lm_head.weight", 64, "q4_0", "q8_0"),
        ("gate", 64, "q4_0", "q4_0"),
    ],
)
def test_what_is_quantised(name: str, columns: int, quantization: str | None, wanted: str) -> None:
    assert target(name, "bf16", columns, quantization) == wanted
