"""rms_norm on a GPU against the reference; without a card in Triton's interpreter."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from ftd.kernels.rms_norm_ref import rms_norm as reference
from ftd.kernels.rms_norm_triton import MAX_WIDTH, rms_norm, rms_norm_into

AssertClose = Callable[..., None]


@pytest.mark.parametrize(("tokens", "width"), [(1, 1), (3, 7), (2, 576), (1, 4096), (37, 64), (5, 2880)])
def test_equals_the_reference(
    tokens: int, width: int, rng: np.random.Generator, assert_close: AssertClose, device: str
) -> None:
    x, weight = rng.standard_normal((tokens, width), np.float32), rng.standard_normal(width, np.float32)
    actual = rms_norm(torch.from_numpy(x).to(device), torch.from_numpy(weight).to(device), 1e-5)
    assert_close(actual.cpu().numpy(), reference(x, weight, 1e-5), "sum")


def test_adds_to_the_residual_first(rng: np.random.Generator, assert_close: AssertClose, device: str) -> None:
    x, y = rng.standard_normal((2, 5, 96), np.float32)
    weight = rng.standard_normal(96, np.float32)
    residual, out = torch.tensor(x, device=device), torch.full((5, 200), 7.0, device=device)
    rms_norm_into(
        residual,
        torch.from_numpy(weight).to(device),
        1e-5,
        out=out[:, 8:104],
        add=torch.from_numpy(y).to(device),
        add_scale=0.25,
    )
    assert_close(residual.cpu().numpy(), x + np.float32(0.25) * y, "elementwise")
    assert_close(out[:, 8:104].cpu().numpy(), reference(x + np.float32(0.25) * y, weight, 1e-5), "sum")
    assert (out[:, :8] == 7).all() and (out[:, 104:] == 7).all()


def test_heads_of_a_wider_buffer_in_place_as_bf16(rng: np.random.Generator, device: str) -> None:
    x, weight = rng.standard_normal((3, 5, 40), np.float32), rng.standard_normal(40, np.float32)
    wide = torch.zeros((3, 300), dtype=torch.bfloat16, device=device)
    heads = wide[:, 20:220].unflatten(1, (5, 40))
    heads.copy_(torch.from_numpy(x))
    expected = reference(heads.float().cpu().numpy().reshape(-1, 40), weight, 1e-6).reshape(x.shape)
    rms_norm_into(heads, torch.from_numpy(weight).to(device), out=heads)
    np.testing.assert_allclose(heads.float().cpu().numpy(), expected, rtol=2**-7)
    assert (wide[:, :20] == 0).all() and (wide[:, 220:] == 0).all()


def test_no_rows(device: str) -> None:
    assert rms_norm(torch.zeros((0, 8), device=device), torch.ones(8, device=device)).shape == (0, 8)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((torch.zeros(2, 4), torch.ones(5)), "weight must be float32"),
        ((torch.zeros(2, 4, dtype=torch.int32), torch.ones(4)), "x must be"),
        ((torch.zeros(2, 4), torch.ones(4), -1.0), "eps must be at least 0"),
        ((torch.zeros(1, MAX_WIDTH + 1), torch.ones(MAX_WIDTH + 1)), "at most 32768"),
    ],
)
def test_refuses(arguments: tuple[torch.Tensor, ...], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        rms_norm(*arguments)
