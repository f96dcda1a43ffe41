"""head_linear's, latent_norm's and latent_store's Triton kernels against their references."""

import numpy as np
import pytest
import torch

from ftd.kernels import head_linear_ref, latent_norm_ref, latent_store_ref
from ftd.kernels.device_matrix import DeviceMatrix
from ftd.kernels.head_linear_triton import head_linear, head_linear_into, unpacked
from ftd.kernels.latent_norm_triton import latent_norm
from ftd.kernels.latent_store_triton import latent_store
from ftd.kernels.quant import QuantMatrix
from tests.engine.tiny import matrix, q8_0


def weight_of(format_name: str, rng: np.random.Generator, rows: int, columns: int) -> QuantMatrix:
    """Return a random weight."""
    values = rng.standard_normal((rows, columns), np.float32)
    return matrix(values) if format_name == "f32" else q8_0(values)


@pytest.mark.parametrize(
    ("tokens", "heads", "each", "columns", "tail", "interleaved", "first", "rows", "transposed"),
    [
        (1, 4, 40, 32, 0, False, 16, 0, False),
        (17, 2, 40, 64, 8, True, 0, 16, True),
        (3, 3, 33, 96, 6, False, 5, 20, False),
        (20, 1, 7, 32, 2, True, 0, 7, True),
    ],
)
@pytest.mark.parametrize("format_name", ["f32", "q8_0"])
def test_head_linear(
    device: str, rng: np.random.Generator, tokens: int, heads: int, each: int, columns: int, tail: int,
    interleaved: bool, first: int, rows: int, transposed: bool, format_name: str,
) -> None:  # fmt: skip
    weight = weight_of(format_name, rng, heads * each, columns)
    used = rows or each - first
    x = rng.standard_normal((tokens, heads, (used if transposed else columns) + tail), np.float32)
    wanted = head_linear_ref.head_linear(x, weight, tail, interleaved, first, rows, transposed)
    on_device = DeviceMatrix.upload([weight], device)
    heads_of_x = torch.from_numpy(x).to(device)
    parts = unpacked(on_device, heads, first, used, transposed, torch.bfloat16)
    out = torch.zeros(wanted.shape, device=device)
    head_linear_into(heads_of_x.flatten(1), parts, tail, interleaved, out=out.flatten(1))
    exact = head_linear(heads_of_x, on_device, tail, interleaved, first, rows, transposed)
    for result, tolerance in ((exact, 2e-6), (out, 2e-2)):
        actual = result.cpu().numpy()
        assert np.abs(actual - wanted).max() <= tolerance * np.abs(wanted).max()
        np.testing.assert_array_equal(
            actual[:, :, wanted.shape[2] - tail :], wanted[:, :, wanted.shape[2] - tail :]
        )


def test_head_linear_of_rows_of_bfloat16(device: str, rng: np.random.Generator) -> None:
    x, weight = rng.standard_normal((5, 2, 68), np.float32), weight_of("q8_0", rng, 2 * 40, 64)
    rows = torch.from_numpy(x).to(device, torch.bfloat16)
    actual = head_linear(rows, DeviceMatrix.upload([weight], device), 4)
    wanted = head_linear_ref.head_linear(rows.float().cpu().numpy(), weight, 4)
    assert actual.dtype == torch.bfloat16 and actual.shape == wanted.shape
    assert np.abs(actual.float().cpu().numpy() - wanted).max() <= 2e-2 * np.abs(wanted).max()


def test_head_linear_of_many_rows(device: str, rng: np.random.Generator) -> None:
    x, weight = rng.standard_normal((70, 2, 64), np.float32), weight_of("f32", rng, 2 * 80, 64)
    parts = unpacked(DeviceMatrix.upload([weight], device), 2, 0, 80, False, torch.bfloat16)
    out = torch.zeros((70, 168), device=device)[:, :160]
    head_linear_into(torch.from_numpy(x.reshape(70, -1)).to(device), parts, out=out)
    wanted = head_linear_ref.head_linear(x, weight).reshape(70, -1)
    assert np.abs(out.cpu().numpy() - wanted).max() <= 2e-2 * np.abs(wanted).max()


@pytest.mark.parametrize(
    ("latent", "tail", "interleaved"), [(32, 8, True), (29, 3, False), (512, 64, True), (5, 0, False)]
)
def test_latent_norm(
    device: str, rng: np.random.Generator, latent: int, tail: int, interleaved: bool
) -> None:
    x, weight = rng.standard_normal((3, latent + tail), np.float32), rng.standard_normal(latent, np.float32)
    tensors = torch.from_numpy(x).to(device), torch.from_numpy(weight).to(device)
    actual = latent_norm(*tensors, 1e-6, interleaved).cpu().numpy()
    wanted = latent_norm_ref.latent_norm(x, weight, 1e-6, interleaved)
    assert np.abs(actual - wanted).max() <= 1e-6 * np.abs(wanted).max()


@pytest.mark.parametrize("dtype", ["f2", "f4"])
def test_latent_store_leaves_padding_out(device: str, rng: np.random.Generator, dtype: str) -> None:
    x, index = rng.standard_normal((3, 20), np.float32), np.array([7, -1, 0], np.int32)
    pages = torch.zeros((3, 4, 20), dtype=torch.float16 if dtype == "f2" else torch.float32, device=device)
    latent_store(torch.from_numpy(x).to(device), pages, torch.from_numpy(index).to(device))
    wanted = np.zeros((3, 4, 20), dtype)
    latent_store_ref.latent_store(x[[0, 2]], wanted, index[[0, 2]])
    np.testing.assert_array_equal(pages.cpu().numpy(), wanted)


def test_refuse_what_does_not_fit(device: str) -> None:
    x, weight = torch.zeros((2, 70), device=device), torch.zeros((2, 16, 32), device=device)
    with pytest.raises(ValueError, match=r"x must be .* \[T, 72\]"):
        head_linear_into(x, weight, 4, out=x)
    rows = DeviceMatrix("f32", (32, 32), (weight.view(1, 32, 32),))
    with pytest.raises(ValueError, match=r"a head of x must hold 32 and 4 channels, got \[2, 2, 35\]"):
        head_linear(x.unflatten(1, (2, 35)), rows, 4)
    with pytest.raises(
        ValueError, match=r"x must hold the latent and a tail.* got 7 channels of which 8 are"
    ):
        latent_norm(torch.zeros((2, 7), device=device), torch.zeros(8, device=device))
    with pytest.raises(ValueError, match=r"kv_index must be int32 \[2\]"):
        latent_store(
            torch.zeros((2, 8), device=device),
            torch.zeros((1, 4, 8), device=device),
            torch.zeros(3, dtype=torch.int32, device=device),
        )
