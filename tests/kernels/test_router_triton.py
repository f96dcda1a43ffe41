"""The router's Triton kernel against norm, product and choice of the references."""

from typing import Any

import numpy as np
import pytest
import torch
from weights import random_matrix

from ftd.kernels import rms_norm_ref, route_topk_ref
from ftd.kernels.dequantize_ref import dequantize
from ftd.kernels.device_matrix import DeviceMatrix
from ftd.kernels.router_triton import router


def run(
    device: str, x: Any, norm: Any, weight: Any, weight_bias: Any, kv_index: Any, **options: Any
) -> tuple[Any, ...]:
    """Run the kernel twice, as counters must be as they were; return logits, ids, weights and the norm."""
    tokens, width = x.shape
    experts, chosen = weight.shape[0], options["num_chosen"]
    bias = options.pop("bias", None)

    def place(array: Any) -> Any:
        return None if array is None else torch.from_numpy(array).to(device)

    out = {
        "normed": torch.full((tokens, width), torch.nan, device=device),
        "logits": torch.full((tokens, experts), torch.nan, device=device),
        "arrivals": torch.zeros(tokens, dtype=torch.int32, device=device),
        "ids": torch.full((tokens, chosen), 77, dtype=torch.int32, device=device),
        "weights": torch.full((tokens, chosen), torch.nan, device=device),
    }
    placed = DeviceMatrix.upload([weight], device)
    for _ in range(2):
        router(
            place(x), (place(norm), 1e-6), placed, place(weight_bias),
            bias=place(bias), kv_index=place(kv_index), **options, **out,
        )  # fmt: skip
    assert not out["arrivals"].any()
    return tuple(out[name].cpu().numpy() for name in ("logits", "ids", "weights", "normed"))


@pytest.mark.parametrize(
    ("name", "experts", "width", "options", "biased"),
    [
        ("f32", 24, 96, {"num_chosen": 3}, False),
        pytest.param(
            *("bf16", 130, 64, {"num_chosen": 4, "renormalise": False, "scale": 1.5}, False),
            marks=pytest.mark.slow,
        ),
        ("f16", 7, 2304, {"num_chosen": 2, "scoring": "sigmoid"}, True),
        pytest.param(
            *("f32", 64, 80),
            {"num_chosen": 6, "scoring": "sigmoid", "num_groups": 8, "top_groups": 4, "scale": 2.5},
            True,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_equals_the_references(
    device: str,
    rng: np.random.Generator,
    name: str,
    experts: int,
    width: int,
    options: dict[str, Any],
    biased: bool,
) -> None:
    tokens = 3
    x = rng.standard_normal((tokens, width), np.float32) * np.float32(3)
    norm = rng.random(width, np.float32) + np.float32(0.5)
    weight = random_matrix(name, experts, width, rng)
    weight_bias = rng.standard_normal(experts, np.float32) if biased else None
    bias = rng.standard_normal(experts, np.float32) * np.float32(0.3) if biased else None
    kv_index = np.array([4, -1, 0], np.int32)
    logits, ids, weights, normed = run(device, x, norm, weight, weight_bias, kv_index, bias=bias, **options)
    wanted = rms_norm_ref.rms_norm(x, norm, 1e-6)
    np.testing.assert_allclose(normed, wanted, rtol=2e-6)
    exact = wanted.astype(np.float64) @ dequantize(weight).astype(np.float64).T
    exact += 0.0 if weight_bias is None else weight_bias
    assert np.abs(logits - exact).max() <= 2e-6 * np.abs(exact).max()
    wanted_ids, wanted_weights = route_topk_ref.route_topk(logits, bias=bias, **options)
    assert ids[1].tolist() == [-1] * options["num_chosen"]
    assert not weights[1].any()
    np.testing.assert_array_equal(ids[[0, 2]], wanted_ids[[0, 2]])
    np.testing.assert_allclose(weights[[0, 2]], wanted_weights[[0, 2]], rtol=1e-6)


def test_refuses_what_it_cannot_read(device: str, rng: np.random.Generator) -> None:
    x, norm = np.zeros((1, 32), np.float32), np.ones(32, np.float32)
    with pytest.raises(ValueError, match="weight must be one of bf16 f16 f32, got q8_0"):
        run(device, x, norm, random_matrix("q8_0", 4, 32, rng), None, np.zeros(1, np.int32), num_chosen=2)
    with pytest.raises(ValueError, match="tokens"):
        x = np.zeros((17, 32), np.float32)
        run(device, x, norm, random_matrix("f32", 4, 32, rng), None, np.zeros(17, np.int32), num_chosen=2)
