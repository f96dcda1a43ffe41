"""dequantize against the gguf package's definition for every GGUF type, and version against version."""

import gguf
import numpy as np
import pytest
from gguf_planes import BLOCK_BYTES, planes_of
from weights import random_matrix

from ftd.kernels._dequantize_cy import dequantize as compiled
from ftd.kernels._pool import Pool
from ftd.kernels.dequantize_ref import dequantize, e4m3_values
from ftd.kernels.quant import FORMATS, QuantMatrix

# Where the half-precision fields of a block begin.
HALVES = {
    "q8_0": (0,),
    "q4_0": (0,),
    "q4_1": (0, 2),
    "q5_0": (0,),
    "q5_1": (0, 2),
    "q4_k": (0, 2),
    "q5_k": (0, 2),
    "q6_k": (208,),
}


def random_blocks(name: str, rows: int, columns: int, rng: np.random.Generator) -> np.ndarray:
    block_bytes, block_values = BLOCK_BYTES[name]
    blocks = rng.integers(0, 256, (rows, columns // block_values, block_bytes), np.uint8)
    for start in HALVES[name]:
        halves = rng.standard_normal(blocks.shape[:2]).astype(np.float16)
        blocks[..., start : start + 2] = halves.view(np.uint8).reshape(*blocks.shape[:2], 2)
    return blocks.reshape(rows, -1)


@pytest.mark.parametrize("name", list(BLOCK_BYTES))
def test_gguf_types_have_the_values_that_the_gguf_package_gives(name: str, rng: np.random.Generator) -> None:
    raw = random_blocks(name, 5, 768, rng)
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name.upper()])
    weight = planes_of(name, raw, (5, 768))
    np.testing.assert_array_equal(dequantize(weight), expected)
    np.testing.assert_array_equal(compiled(weight), expected)


def test_mxfp4_has_the_values_that_the_gguf_package_gives(rng: np.random.Generator) -> None:
    raw = rng.integers(0, 256, (3, 4, 17), np.uint8)
    raw[..., 0] = rng.integers(1, 254, (3, 4))  # the package's table has no zero and no NaN exponent
    expected = gguf.quants.dequantize(raw.reshape(3, -1), gguf.GGMLQuantizationType.MXFP4)
    planes = (np.ascontiguousarray(raw[..., 1:]).reshape(3, -1), np.ascontiguousarray(raw[..., 0]))
    weight = QuantMatrix("mxfp4", (3, 128), planes)
    np.testing.assert_array_equal(dequantize(weight), expected)
    np.testing.assert_array_equal(compiled(weight), expected)


def test_bf16_has_the_values_that_the_gguf_package_gives(rng: np.random.Generator) -> None:
    raw = (rng.standard_normal((3, 37)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    expected = gguf.quants.dequantize(raw.view(np.uint8), gguf.GGMLQuantizationType.BF16)
    np.testing.assert_array_equal(dequantize(QuantMatrix("bf16", (3, 37), (raw,))), expected)


def test_e4m3_values_are_those_of_the_standard() -> None:
    values = e4m3_values()
    assert values[0x00] == 0.0
    assert values[0x01] == 2.0**-9
    assert values[0x08] == 2.0**-6
    assert values[0x38] == 1.0
    assert values[0x7E] == 448.0
    assert values[0xB8] == -1.0
    assert np.isnan(values[[0x7F, 0xFF]]).all()


def test_fp8_blocks_scale_128_rows_and_columns() -> None:
    codes = np.full((130, 129), 0x38, np.uint8)  # 1.0
    scales = np.array([[2.0, 3.0], [5.0, 7.0]], np.float32)
    values = compiled(QuantMatrix("fp8_b128", (130, 129), (codes, scales)))
    assert [values[0, 0], values[127, 128], values[128, 127], values[129, 128]] == [2.0, 3.0, 5.0, 7.0]


def test_nvfp4_multiplies_code_local_and_global_scale() -> None:
    codes = np.full((1, 8), 0x72, np.uint8)  # 1.0 in the low nibble, 6.0 in the high one
    weight = QuantMatrix(
        "nvfp4", (1, 16), (codes, np.array([[0x40]], np.uint8), np.array([[0.5]], np.float32))
    )
    expected = np.array([[1.0] * 8 + [6.0] * 8], np.float32)
    np.testing.assert_array_equal(dequantize(weight), expected)
    np.testing.assert_array_equal(compiled(weight), expected)


@pytest.mark.parametrize("name", list(FORMATS))
@pytest.mark.parametrize("rows", [1, 7, 130])
def test_compiled_equals_reference_bit_for_bit(
    name: str, rows: int, rng: np.random.Generator, pools: tuple[Pool | None, ...]
) -> None:
    columns = 3 * FORMATS[name].block if FORMATS[name].block > 1 else 131
    weight = random_matrix(name, rows, columns, rng)
    expected = dequantize(weight)
    for pool in pools:
        np.testing.assert_array_equal(compiled(weight, pool=pool), expected)


def test_every_half_precision_scale_is_read_exactly() -> None:
    scales = np.arange(65536, dtype=np.uint32).astype(np.uint16).view(np.float16).reshape(-1, 1)
    weight = QuantMatrix("q8_0", (65536, 32), (np.ones((65536, 32), np.int8), scales))
    np.testing.assert_array_equal(compiled(weight)[:, 0], scales[:, 0].astype(np.float32))
