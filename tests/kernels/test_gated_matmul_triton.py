"""gated_matmul on a GPU against exact weights in float64 and the activations' references."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from weights import random_matrix

from ftd.kernels.dequantize_ref import dequantize
from ftd.kernels.device_matrix import DeviceMatrix
from ftd.kernels.gated_matmul_triton import gated_matmul
from ftd.kernels.geglu_ref import geglu
from ftd.kernels.quant import QuantMatrix
from ftd.kernels.rms_norm_ref import rms_norm
from ftd.kernels.swiglu_ref import swiglu

ACTIVATIONS: dict[str, Callable[..., NDArray[np.float32]]] = {"silu": swiglu, "gelu": geglu}
# Largest error relative to the largest value: of products of two sums, in bfloat16 and in float32.
TOLERANCE = {"fast": 2e-2, "f32": 3e-6}


def expected(x: NDArray[Any], weight: QuantMatrix, activation: str) -> NDArray[np.float32]:
    both = (x.astype(np.float64) @ dequantize(weight).astype(np.float64).T).astype(np.float32)
    half = weight.shape[0] // 2
    return ACTIVATIONS[activation](both[:, :half].copy(), both[:, half:].copy())


def assert_close(actual: torch.Tensor, wanted: NDArray[np.float32], precision: str) -> None:
    error = np.abs(actual.float().cpu().numpy() - wanted).max()
    assert error <= TOLERANCE[precision] * np.abs(wanted).max()


@pytest.mark.parametrize("precision", ["fast", "f32"])
@pytest.mark.parametrize("activation", ["silu", "gelu"])
@pytest.mark.parametrize("tokens", [1, 5, 65])
def test_equals_the_references(
    tokens: int, activation: Any, precision: str, rng: np.random.Generator, device: str
) -> None:
    weight = random_matrix("q4_0", 2 * 35, 96, rng)
    x = 3.0 * rng.standard_normal((tokens, 96), np.float32)
    on_device = DeviceMatrix.upload([weight], device)
    actual = gated_matmul(torch.from_numpy(x).to(device), on_device, activation, precision)
    assert_close(actual, expected(x, weight, activation), precision)


@pytest.mark.parametrize(("name", "tokens"), [("bf16", 3), ("fp8_b128", 3), ("q4_1", 1)])
def test_norm_and_columns_of_wider_buffers(
    name: str, tokens: int, rng: np.random.Generator, device: str
) -> None:
    # 150 rows of gate: rows of up begin inside of a block of fp8_b128's scales.
    weight = random_matrix(name, 2 * 150, 192, rng)
    x = rng.standard_normal((tokens, 192), np.float32)
    norm_weight = rng.standard_normal(192).astype(np.float32)
    wide = torch.full((tokens, 200), 7.0, device=device)
    gated_matmul(
        torch.from_numpy(x).to(device),
        DeviceMatrix.upload([weight], device),
        "silu",
        "f32",
        norm=(torch.from_numpy(norm_weight).to(device), 1e-5),
        out=wide[:, 16:166],
    )
    assert_close(wide[:, 16:166], expected(rms_norm(x, norm_weight, 1e-5), weight, "silu"), "f32")
    assert (wide[:, :16] == 7).all() and (wide[:, 166:] == 7).all()


def test_wrong_arguments(rng: np.random.Generator) -> None:
    weight = DeviceMatrix.upload([random_matrix("bf16", 10, 64, rng)], "cpu")
    odd = DeviceMatrix.upload([random_matrix("bf16", 9, 64, rng)], "cpu")
    x = torch.zeros(1, 64)
    with pytest.raises(ValueError, match="activation must be one of silu gelu, got relu"):
        gated_matmul(x, weight, "relu")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="got 9 rows"):
        gated_matmul(x, odd, "silu")
    with pytest.raises(ValueError, match="out must be"):
        gated_matmul(x, weight, "silu", out=torch.zeros(1, 10))
