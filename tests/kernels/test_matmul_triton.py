"""matmul on a GPU against exact weights in float64; without a card in Triton's interpreter."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from weights import random_matrix

from ftd.kernels import matmul_triton
from ftd.kernels.dequantize_ref import dequantize
from ftd.kernels.device_matrix import DeviceMatrix
from ftd.kernels.matmul_triton import Scaled, Scaling, dense_product, matmul, matmul_into
from ftd.kernels.product_launch import Launch, squared_tiles
from ftd.kernels.quant import FORMATS, QuantMatrix
from ftd.kernels.rms_norm_ref import rms_norm
from ftd.kernels.word_product_triton import CODE_FORMATS

# Largest error relative to the sum of |x||w|: "fast" rounds both to 8 bits (the interpreter cuts them
# off), "f32" sums some hundred products.
TOLERANCE = {"fast": 2.0**-7, "f32": 1e-6}


def columns_of(name: str) -> int:
    """Return a K that is no multiple of a tile, and for nvfp4 none of 32."""
    return {1: 165, 16: 176, 32: 160, 256: 512}[FORMATS[name].block]


def upload(weight: QuantMatrix, device: str) -> DeviceMatrix:
    return DeviceMatrix.upload([weight], device)


def assert_product(actual: torch.Tensor, x: NDArray[Any], weight: QuantMatrix, kind: str) -> None:
    """Fail unless ``actual`` is x W^T within the tolerance of ``kind``."""
    wide, exact = x.astype(np.float64), dequantize(weight).astype(np.float64)
    got = actual.float().cpu().numpy()
    assert np.isfinite(got).all()
    scale = np.abs(wide) @ np.abs(exact).T + 1e-30
    assert (np.abs(got - wide @ exact.T) / scale).max() <= TOLERANCE[kind]


@pytest.mark.parametrize("tokens", [1, 3, 65])
@pytest.mark.parametrize("name", list(FORMATS))
def test_every_format_for_one_for_few_and_for_many_tokens(
    name: str, tokens: int, rng: np.random.Generator, device: str
) -> None:
    weight = random_matrix(name, 37, columns_of(name), rng)
    x = rng.standard_normal((tokens, weight.shape[1]), np.float32)
    actual = matmul(torch.from_numpy(x).to(device), upload(weight, device))
    assert_product(actual, x, weight, "fast")


@pytest.mark.parametrize("tokens", [3, 17])
@pytest.mark.parametrize("name", list(FORMATS))
def test_every_format_in_float32(name: str, tokens: int, rng: np.random.Generator, device: str) -> None:
    weight = random_matrix(name, 19, {1: 75, 16: 80, 32: 96, 256: 256}[FORMATS[name].block], rng)
    x = rng.standard_normal((tokens, weight.shape[1]), np.float32)
    actual = matmul(torch.from_numpy(x).to(device), upload(weight, device), None, "f32")
    assert_product(actual, x, weight, "f32")


@pytest.mark.parametrize(
    ("tokens", "rows"), [(1, 1), (2, 63), (15, 130), (16, 1), (17, 65), (33, 63), (66, 130)]
)
def test_tokens_and_rows_at_and_over_tiles(
    tokens: int, rows: int, rng: np.random.Generator, device: str
) -> None:
    weight = random_matrix("bf16", rows, 64, rng)
    x = rng.standard_normal((tokens, 64), np.float32)
    assert_product(matmul(torch.from_numpy(x).to(device), upload(weight, device)), x, weight, "fast")


@pytest.mark.parametrize("tokens", [2, 20])
def test_bias_add_and_columns_of_wider_buffers(tokens: int, rng: np.random.Generator, device: str) -> None:
    weight = random_matrix("q8_0", 40, 96, rng)
    x, before = rng.standard_normal((tokens, 96), np.float32), rng.standard_normal((tokens, 40), np.float32)
    bias = rng.standard_normal(40).astype(np.float32)
    source = torch.full((tokens, 200), 5.0, device=device)
    source[:, 16:112] = torch.from_numpy(x)
    target = torch.full((tokens, 100), 7.0, device=device)
    target[:, 8:48] = torch.from_numpy(before)
    arguments = (source[:, 16:112], upload(weight, device), torch.from_numpy(bias).to(device), "f32")
    matmul_into(*arguments, out=target[:, 8:48], add=True)
    assert_product(target[:, 8:48] - torch.from_numpy(before + bias).to(device), x, weight, "f32")
    assert (target[:, :8] == 7).all() and (target[:, 48:] == 7).all()


def test_bf16_in_and_out(rng: np.random.Generator, device: str) -> None:
    weight = random_matrix("bf16", 32, 128, rng)
    x = torch.from_numpy(rng.standard_normal((4, 128), np.float32)).to(torch.bfloat16)
    out = torch.empty((4, 32), dtype=torch.bfloat16, device=device)
    assert matmul_into(x.to(device), upload(weight, device), out=out) is out
    assert_product(out, x.float().numpy(), weight, "fast")


@pytest.mark.parametrize("precision", ["fast", "f32"])
@pytest.mark.parametrize("name", ["bf16", "q4_k", "nvfp4", "fp8_b128"])
def test_norm_before_the_product(name: str, precision: str, rng: np.random.Generator, device: str) -> None:
    weight = random_matrix(name, 37, columns_of(name), rng)
    x = 3.0 * rng.standard_normal((1 if name == "q4_k" else 3, weight.shape[1]), np.float32)
    norm_weight = rng.standard_normal(weight.shape[1]).astype(np.float32)
    norm = (torch.from_numpy(norm_weight).to(device), 1e-2)
    actual = torch.empty((len(x), 37), device=device)
    matmul_into(
        torch.from_numpy(x).to(device), upload(weight, device), None, precision, out=actual, norm=norm
    )
    assert_product(actual, rms_norm(x, norm_weight, 1e-2), weight, precision)


NEIGHBOURS = (
    ("q4_0", "q4_0", "fast"), ("bf16", "q8_0", "fast"), ("q4_k", "bf16", "fast"), ("q4_0", "bf16", "f32"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("first", "second", "precision", "tokens"),
    # Few tokens of one pair stand for those of the others where time counts
    [
        pytest.param(
            *pair, tokens, marks=pytest.mark.slow if tokens > 1 and pair is not NEIGHBOURS[0] else ()
        )
        for pair in NEIGHBOURS
        for tokens in (1, 3, 16)
    ],
)
def test_a_norm_between_two_products(
    first: str, second: str, precision: str, tokens: int, rng: np.random.Generator, device: str
) -> None:
    weights = random_matrix(first, 512, 256, rng), random_matrix(second, 37, 512, rng)
    x, before = rng.standard_normal((tokens, 256), np.float32), rng.standard_normal((tokens, 512), np.float32)
    norm_weight = rng.standard_normal(512).astype(np.float32)
    on_device = [upload(weight, device) for weight in weights]
    stream = torch.tensor(before, device=device)
    kind = torch.float32 if precision == "f32" else torch.bfloat16
    scaled = torch.full((tokens, 600), 7.0, device=device, dtype=kind)
    scaling = Scaling(torch.from_numpy(norm_weight).to(device), scaled[:, 8:520])
    matmul_into(
        torch.from_numpy(x).to(device), on_device[0], None, precision, out=stream, add=True, scaling=scaling
    )
    assert_product(stream - torch.from_numpy(before).to(device), x, weights[0], precision)
    sums = stream.cpu().numpy()
    assert (scaled[:, :8] == 7).all() and (scaled[:, 520:] == 7).all()
    np.testing.assert_allclose(scaling.out.float().cpu(), sums * norm_weight, rtol=2**-7)
    out = torch.empty((tokens, 37), device=device)
    norm = Scaled(1e-2, squared_tiles(on_device[0], tokens, precision))
    matmul_into(scaling.out, on_device[1], None, precision, out=out, norm=norm)
    assert_product(out, rms_norm(sums, norm_weight, 1e-2), weights[1], precision)


@pytest.mark.parametrize(
    ("splits", "tokens", "precision"), [(1, 2, "f32"), (3, 2, "f32"), (2, 1, "fast"), (5, 3, "fast")]
)
def test_parts_of_k_give_the_product_and_leave_the_counters_at_zero(
    splits: int, tokens: int, precision: str, rng: np.random.Generator, device: str
) -> None:
    columns, bk = (224, 64) if precision == "f32" else (608, 128)
    weight = random_matrix("q4_0", 20, columns, rng)
    x = rng.standard_normal((tokens, columns), np.float32)
    norm_weight = np.ones(columns, np.float32)
    is_token = tokens == 1  # a norm takes the kernels of more
    out = torch.empty((tokens, 20), device=device)
    for _ in range(2):
        dense_product(
            torch.from_numpy(x).to(device),
            upload(weight, device),
            out.fill_(float("nan")),
            norm=None if is_token else (torch.from_numpy(norm_weight).to(device), 1e-6),
            precision=precision,
            launch=Launch(16, bk, 1 if is_token else 16, splits, 1, 2),
        )
        assert_product(out, x if is_token else rms_norm(x, norm_weight, 1e-6), weight, precision)


@pytest.mark.parametrize("name", [name for name in FORMATS if name in CODE_FORMATS])
def test_one_token_in_bfloat16_wherever_it_lies(name: str, rng: np.random.Generator, device: str) -> None:
    weight = random_matrix(name, 37, 768, rng)
    x = torch.from_numpy(rng.standard_normal((1, 780), np.float32)).to(torch.bfloat16).to(device)
    for first in (0, 8, 3):
        row = x[:, first : first + 768]
        actual = matmul(row, upload(weight, device))
        assert_product(actual, row.float().cpu().numpy(), weight, "fast")


@pytest.mark.parametrize(("bn", "bk", "warps"), [(32, 256, 1), (64, 128, 2), (128, 512, 4)])
@pytest.mark.parametrize("name", ["q4_0", "q8_0", "q6_k"])
def test_words_in_any_number_of_warps_and_units(
    name: str, bn: int, bk: int, warps: int, rng: np.random.Generator, device: str
) -> None:
    weight = random_matrix(name, 70, 512, rng)
    x = rng.standard_normal((9, 512), np.float32)
    out = torch.full((9, 70), float("nan"), device=device)
    launch = Launch(bn, bk, 16, 1, warps, 2)
    dense_product(torch.from_numpy(x).to(device), upload(weight, device), out, launch=launch)
    assert_product(out, x, weight, "fast")


@pytest.mark.parametrize("activation", ["", "silu"])
def test_many_tokens_get_a_weight_as_bfloat16_in_slices_of_rows(
    activation: Any, rng: np.random.Generator, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matmul_triton, "_DENSE_ITEMS", 150 * 64)
    monkeypatch.setattr(matmul_triton, "_dense_scratch", {})
    monkeypatch.setattr(matmul_triton, "UNPACK_TOKENS", 18)
    monkeypatch.setattr(matmul_triton, "UNPACK_VALUES", 0)
    weight = random_matrix("q4_0", 2 * 137, 64, rng)
    x = rng.standard_normal((19, 64), np.float32)
    both = x.astype(np.float64) @ dequantize(weight).astype(np.float64).T
    gate, up = both[:, :137], both[:, 137:]
    wanted = gate / (1 + np.exp(-gate)) * up if activation else both
    out = torch.full((19, 300), 7.0, device=device)
    width = wanted.shape[1]
    dense_product(
        torch.from_numpy(x).to(device), upload(weight, device), out[:, :width], activation=activation
    )
    error = np.abs(out[:, :width].cpu().numpy() - wanted).max()
    assert error <= 1e-2 * np.abs(wanted).max()
    assert (out[:, width:] == 7).all()


def test_reserve_counts_room_for_unpacked_weights_only_where_they_are(
    rng: np.random.Generator, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matmul_triton, "UNPACK_VALUES", 16 * 64)
    packed, dense = (upload(random_matrix(name, 16, 64, rng), device) for name in ("q4_0", "bf16"))
    few = matmul_triton.reserve([packed, dense], 256, "fast", device)
    many = matmul_triton.reserve([packed, dense], 257, "fast", device)
    assert many - few == 128 << 20
    assert matmul_triton.reserve([dense], 8192, "fast", device) == few
    assert matmul_triton.reserve([packed], 8192, "f32", device) == few


def test_rows_of_zeros_and_of_padding_stay_finite(rng: np.random.Generator, device: str) -> None:
    weight = random_matrix("q4_0", 16, 64, rng)
    norm = (torch.ones(64, device=device), 1e-6)
    out = torch.full((4, 16), 7.0, device=device)
    matmul_into(torch.zeros((4, 64), device=device), upload(weight, device), out=out, norm=norm)
    assert (out == 0).all()


def test_no_tokens(rng: np.random.Generator, device: str) -> None:
    weight = upload(random_matrix("bf16", 16, 64, rng), device)
    assert matmul(torch.zeros((0, 64), device=device), weight).shape == (0, 16)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"x": torch.zeros(2, 63)}, "x must be float32 or bfloat16"),
        ({"x": torch.zeros(2, 64, dtype=torch.float16)}, "x must be"),
        ({"bias": torch.zeros(15)}, "bias must be float32"),
        ({"out": torch.zeros(2, 15)}, "out must be"),
        ({"precision": "f16"}, "precision must be one of"),
        ({"norm": (torch.ones(63), 0.0)}, "norm must be float32"),
        ({"x": torch.zeros(17, 64), "norm": (torch.ones(64), 0.0)}, "at most 16 tokens"),
        ({"scaling": Scaling(torch.ones(15), torch.ones(2, 16))}, "scaling.weight must be float32"),
        ({"scaling": Scaling(torch.ones(16), torch.ones(2, 15))}, "scaling.out must be"),
        (
            {
                "x": torch.zeros(17, 64),
                "out": torch.zeros(17, 16),
                "scaling": Scaling(torch.ones(16), torch.ones(17, 16)),
            },
            "a norm follows products of 1 to 16 tokens",
        ),
    ],
)
def test_wrong_arguments(change: dict[str, Any], match: str, rng: np.random.Generator) -> None:
    weight = upload(random_matrix("bf16", 16, 64, rng), "cpu")
    arguments: dict[str, Any] = {"x": torch.zeros(2, 64), "weight": weight, **change}
    arguments.setdefault("out", torch.zeros(len(arguments["x"]), 16))
    with pytest.raises(ValueError, match=match):
        matmul_into(**arguments)


def test_weights_in_several_slots_are_refused(rng: np.random.Generator) -> None:
    slots = torch.zeros((2, 2048), dtype=torch.uint8)
    weight = DeviceMatrix.in_slots(slots, "bf16", (16, 64), (0,))
    with pytest.raises(ValueError, match="one slot, got 2"):
        matmul(torch.zeros(1, 64), weight)
