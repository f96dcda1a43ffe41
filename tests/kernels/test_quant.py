"""The table of formats: plane shapes typed by hand, and what QuantMatrix refuses."""

import numpy as np
import pytest
from weights import random_matrix

from ftd.errors import InvalidFtw
from ftd.kernels.quant import FORMATS, QuantMatrix

# Bytes of a [2, 512] matrix, counted by hand from the drawing in ftd/kernels/quant.py.
BYTES = {
    "f32": 4096,
    "f16": 2048,
    "bf16": 2048,
    "q8_0": 1024 + 64,
    "q4_0": 512 + 64,
    "q4_1": 512 + 128,
    "q5_0": 512 + 128 + 64,
    "q5_1": 512 + 128 + 128,
    "q4_k": 512 + 32 + 32 + 8 + 8,
    "q5_k": 512 + 128 + 32 + 32 + 8 + 8,
    "q6_k": 512 + 256 + 64 + 8,
    "mxfp4": 512 + 32,
    "nvfp4": 512 + 64 + 4,
    "fp8_b128": 1024 + 16,
}


def test_every_format_has_its_bytes(rng: np.random.Generator) -> None:
    assert {name: random_matrix(name, 2, 512, rng).num_bytes for name in FORMATS} == BYTES


def test_fp8_scales_are_rounded_up_to_whole_blocks() -> None:
    plane = FORMATS["fp8_b128"].planes[1]
    assert FORMATS["fp8_b128"].plane_shape(plane, (129, 257)) == (2, 3)


@pytest.mark.parametrize(
    ("name", "shape", "planes", "words"),
    [
        ("q9_z", (1, 32), (), "unknown quantisation format"),
        ("q8_0", (0, 32), (), "K > 0"),
        ("q8_0", (1, 33), (), "blocks of 32"),
        ("q4_k", (1, 128), (), "blocks of 256"),
        ("f32", (1, 4), (), "1 planes, got 0"),
        ("f32", (1, 4), (np.zeros((4, 1), np.float32),), r"\[4, 1\]"),
        ("f32", (1, 4), (np.zeros((1, 4), np.float64),), "float64"),
        ("f32", (2, 4), (np.zeros((4, 2), np.float32).T,), "contiguous"),
    ],
)
def test_a_wrong_matrix_is_refused(
    name: str, shape: tuple[int, int], planes: tuple[np.ndarray, ...], words: str
) -> None:
    with pytest.raises(InvalidFtw, match=words):
        QuantMatrix(name, shape, planes)
