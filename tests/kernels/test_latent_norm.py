"""latent_norm against torch's rms_norm in float64, for every implementation."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

Get = Callable[[str], Callable[..., Any]]
AssertClose = Callable[..., None]


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("tokens", "latent", "tail"), [(0, 8, 2), (1, 1, 0), (3, 512, 64), (5, 33, 6)])
def test_equals_torch(
    get: Get,
    pools: tuple[Any, ...],
    assert_close: AssertClose,
    rng: np.random.Generator,
    tokens: int,
    latent: int,
    tail: int,
    interleaved: bool,
) -> None:
    x = rng.standard_normal((tokens, latent + tail), np.float32) * 3
    weight = rng.standard_normal(latent, np.float32)
    wide = torch.from_numpy(x[:, :latent]).double()
    normed = torch.nn.functional.rms_norm(wide, (latent,), torch.from_numpy(weight).double(), 1e-5).numpy()
    key = x[:, latent:]
    order = [*range(0, tail, 2), *range(1, tail, 2)] if interleaved else list(range(tail))
    for pool in pools:
        actual = get("latent_norm")(x, weight, 1e-5, interleaved, pool=pool)
        assert_close(np.ascontiguousarray(actual[:, :latent]), normed, "sum")
        np.testing.assert_array_equal(actual[:, latent:], key[:, order])


@pytest.mark.parametrize(
    ("width", "latent", "eps", "interleaved", "message"),
    [
        (3, 4, 1e-5, False, "got 3 channels of which 4 are the latent"),
        (7, 4, 1e-5, True, "even where pairs are sorted"),
        (6, 4, -1.0, False, "eps must be at least 0"),
    ],
)
def test_refusals(get: Get, width: int, latent: int, eps: float, interleaved: bool, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        get("latent_norm")(np.zeros((2, width), np.float32), np.ones(latent, np.float32), eps, interleaved)
