"""ftd.ftw.quantize against the ``gguf`` package, whose quantisers are bit for bit those of ggml."""

import gguf
import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ftd.errors import InvalidCheckpoint
from ftd.ftw import gguf_blocks
from ftd.ftw.quantize import as_f32, quantize
from ftd.ftw.recipes import FORMATS_BY_NAME
from ftd.kernels.quant import FORMATS, QuantMatrix

BLOCK_BYTES = {"q8_0": 34, "q4_0": 18, "q4_1": 20, "q5_0": 22, "q5_1": 24, "mxfp4": 17}


def reference(rows: NDArray[np.float32], format: str) -> list[bytes]:
    """Return the planes of what the gguf package makes of ``rows``."""
    kind = format.upper()
    raw = gguf.quantize(rows, gguf.GGMLQuantizationType[kind]).reshape(-1, BLOCK_BYTES[format])
    return [gguf_blocks.plane(kind, plane.name, raw).tobytes() for plane in FORMATS[format].planes]


def planes(matrix: QuantMatrix) -> list[bytes]:
    """Return the bytes of the planes."""
    return [plane.tobytes() for plane in matrix.planes]


@pytest.mark.parametrize("format", BLOCK_BYTES)
@given(seed=st.integers(0, 2**32), rows=st.integers(1, 5), blocks=st.integers(1, 4), scale=st.integers(-8, 4))
@settings(max_examples=examples(60))
def test_codes_and_scales_are_those_of_the_reference(
    format: str, seed: int, rows: int, blocks: int, scale: int
) -> None:
    random = np.random.default_rng(seed)
    values = (random.normal(size=(rows, blocks * 32)) * 10.0**scale).astype(np.float32)
    values[random.random(values.shape) < 0.1] = 0
    assert planes(quantize(values, format)) == reference(values, format)


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
    if format == "mxfp4" and abs(values).max() == np.float32(1e-40):
        pytest.skip("ggml gives such a block an exponent below 0 in an unsigned byte; here it becomes zeros")
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = reference(values, format)
    assert planes(quantize(values, format)) == wanted


@pytest.mark.parametrize("format", FORMATS_BY_NAME)
def test_a_large_matrix_is_the_sum_of_its_rows(format: str) -> None:
    random = np.random.default_rng(0)
    values = random.normal(size=(5, 1 << 18)).astype(np.float32)[:, : (1 << 18) - 512]
    rows = [planes(quantize(row[None], format)) for row in values]
    assert planes(quantize(values, format)) == [b"".join(parts) for parts in zip(*rows, strict=True)]


@pytest.mark.parametrize("format", FORMATS_BY_NAME)
@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_what_no_scale_can_hold_is_refused(format: str, value: float) -> None:
    if format == "mxfp4" and value == 3e38:
        pytest.skip("mxfp4 has scales for every finite value")
    values = np.ones((1, 256), np.float32)
    values[0, 3] = value
    with pytest.raises(InvalidCheckpoint):
        quantize(values, format)


def test_bf16_as_u16_becomes_f32_exactly() -> None:
    assert as_f32(np.array([[0x3F80, 0xC000]], np.uint16)).tolist() == [[1.0, -2.0]]
    assert as_f32(np.array([[1.5]], np.float16)).tolist() == [[1.5]]
