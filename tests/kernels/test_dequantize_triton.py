"""dequantize on a GPU against the reference, for every format; without a card in Triton's interpreter."""

import numpy as np
import pytest
import torch
from weights import random_matrix

from ftd.kernels.dequantize_ref import dequantize as reference
from ftd.kernels.dequantize_triton import dequantize, dequantize_into
from ftd.kernels.device_matrix import DeviceMatrix
from ftd.kernels.quant import FORMATS

# K of one block, over a tile, and for nvfp4 an odd multiple of 16.
COLUMNS = {1: (1, 131), 16: (16, 160, 176), 32: (32, 160), 256: (256, 512)}


@pytest.mark.parametrize("name", list(FORMATS))
def test_equals_the_reference(name: str, rng: np.random.Generator, device: str) -> None:
    for rows, columns in zip((1, 19, 130), COLUMNS[FORMATS[name].block], strict=False):
        weight = random_matrix(name, rows, columns, rng)
        wide = torch.full((rows, columns + 16), 7.0, device=device)
        placed = DeviceMatrix.upload([weight], device)
        dequantize_into(placed, (0, rows), out=wide[:, 8 : columns + 8])
        expected = reference(weight)
        # A fused multiply-add, or another order of nvfp4's two factors, rounds differently.
        np.testing.assert_allclose(
            wide[:, 8 : columns + 8].cpu().numpy(), expected, rtol=2e-7, atol=2e-7 * np.abs(expected).max()
        )
        assert (wide[:, :8] == 7).all() and (wide[:, columns + 8 :] == 7).all()
        assert torch.equal(dequantize(placed), wide[:, 8 : columns + 8])


def test_some_rows_and_rows_that_are_none(rng: np.random.Generator, device: str) -> None:
    placed = DeviceMatrix.upload([random_matrix("q4_0", 40, 64, rng)], device)
    some = dequantize_into(placed, (5, 38), out=torch.empty((33, 64), device=device))
    assert torch.equal(some, dequantize(placed)[5:38])
    for rows in ((5, 5), (-1, 3), (30, 41)):
        with pytest.raises(ValueError, match=f"rows must lie in 0 to 40, got {rows[0]} to {rows[1]}"):
            dequantize_into(placed, rows, out=some)
    with pytest.raises(ValueError, match=r"out must be float32 or bfloat16 \[2, 64\]"):
        dequantize_into(placed, (0, 2), out=some)


@pytest.mark.parametrize(("name", "codes"), [("f32", 0), ("f16", 0), ("bf16", 0), ("q8_0", 256)])
def test_these_formats_are_exact(name: str, codes: int, rng: np.random.Generator, device: str) -> None:
    weight = random_matrix(name, 3, 288, rng)
    if codes:
        weight.planes[0].view(np.uint8)[0, :codes] = np.arange(codes)
    np.testing.assert_array_equal(
        dequantize(DeviceMatrix.upload([weight], device)).cpu().numpy(), reference(weight)
    )


def test_every_exponent_and_every_code_of_mxfp4(rng: np.random.Generator, device: str) -> None:
    weight = random_matrix("mxfp4", 2, 128 * 32, rng)
    weight.planes[1][:] = np.arange(256, dtype=np.uint8).reshape(2, 128)
    with np.errstate(over="ignore"):
        actual = dequantize(DeviceMatrix.upload([weight], device)).cpu().numpy()
    np.testing.assert_array_equal(actual, reference(weight))


def test_every_code_of_fp8(rng: np.random.Generator, device: str) -> None:
    weight = random_matrix("fp8_b128", 2, 128, rng)
    weight.planes[0].view(np.uint8)[:] = np.arange(256, dtype=np.uint8).reshape(2, 128)
    weight.planes[1].view(np.float32)[:] = 0.5
    actual = dequantize(DeviceMatrix.upload([weight], device)).cpu().numpy()
    # The interpreter takes the two codes that are no numbers for numbers.
    known = np.ones(actual.shape, bool) if device == "cuda" else ~np.isnan(reference(weight))
    np.testing.assert_array_equal(actual[known], reference(weight)[known])
