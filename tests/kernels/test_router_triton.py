"""The router's Triton kernel against norm, product and choice of the references."""

from typing import Any

import numpy as np
import pytest
import torch
from weights import random_matrix

from ftd.kernels import rms_norm_ref, route_topk_ref
from ftd.kernels.dequantize_ref import dequantize
from ftd.kernels.device_matrix import DeviceMatrix
from ftd.kernels.router_triton import Expected, router


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


@pytest.mark.parametrize("is_biased", [False, True])
def test_chooses_for_the_next_layer_too(device: str, rng: np.random.Generator, is_biased: bool) -> None:
    tokens, experts, width, chosen = 2, 24, 96, 3
    options: dict[str, Any] = {"num_chosen": chosen, "scoring": "sigmoid" if is_biased else "softmax"}
    x = rng.standard_normal((tokens, width), np.float32)
    norm = rng.random(width, np.float32) + np.float32(0.5)
    matrices = [random_matrix("f32", experts, width, rng) for _ in range(2)]
    biases = [rng.standard_normal((2, experts), np.float32) if is_biased else None for _ in range(2)]
    kv_index = np.array([0, 1], np.int32)
    alone = [
        run(device, x, norm, matrix, *((None,) if bias is None else (bias[0],)), kv_index,
            bias=None if bias is None else bias[1], **options)
        for matrix, bias in zip(matrices, biases, strict=True)
    ]  # fmt: skip
    placed = [
        [
            None if bias is None else torch.from_numpy(row).to(device)
            for row in (bias if bias is not None else (0, 0))
        ]
        for bias in biases
    ]
    made = [
        {
            "logits": torch.full((tokens, experts), torch.nan, device=device),
            "arrivals": torch.zeros(tokens, dtype=torch.int32, device=device),
            "ids": torch.full((tokens, chosen), 77, dtype=torch.int32, device=device),
            "weights": torch.full((tokens, chosen), torch.nan, device=device),
        }
        for _ in range(2)
    ]
    normed = torch.full((tokens, width), torch.nan, device=device)
    first, second = (DeviceMatrix.upload([matrix], device) for matrix in matrices)
    for _ in range(2):
        router(
            torch.from_numpy(x).to(device), (torch.from_numpy(norm).to(device), 1e-6), first, placed[0][0],
            bias=placed[0][1], kv_index=torch.from_numpy(kv_index).to(device), normed=normed, **options,
            **made[0], expected=Expected(second, *placed[1], **made[1]),
        )  # fmt: skip
    for out, wanted in zip(made, alone, strict=True):
        for name, values in zip(("logits", "ids", "weights"), wanted, strict=False):
            np.testing.assert_array_equal(out[name].cpu().numpy(), values)
        assert not out["arrivals"].any()
    np.testing.assert_array_equal(normed.cpu().numpy(), alone[0][3])


def test_refuses_what_it_cannot_read(device: str, rng: np.random.Generator) -> None:
    x, norm = np.zeros((1, 32), np.float32), np.ones(32, np.float32)
    with pytest.raises(ValueError, match="weight must be one of bf16 f16 f32, got q8_0"):
        run(device, x, norm, random_matrix("q8_0", 4, 32, rng), None, np.zeros(1, np.int32), num_chosen=2)
    with pytest.raises(ValueError, match="tokens"):
        x = np.zeros((17, 32), np.float32)
        run(device, x, norm, random_matrix("f32", 4, 32, rng), None, np.zeros(17, np.int32), num_chosen=2)
