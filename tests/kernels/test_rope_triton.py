"""rope on a GPU against the reference."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from ftd.kernels.rope_ref import rope as reference
from ftd.kernels.rope_triton import rope, rope_into

AssertClose = Callable[..., None]


@pytest.mark.parametrize(
    ("shape", "half"), [((1, 3, 64), 32), ((5, 2, 80), 40), ((40, 2, 96), 24), ((3, 1, 6), 1), ((2, 2, 8), 0)]
)
def test_equals_the_reference_far_out(
    shape: tuple[int, int, int], half: int, rng: np.random.Generator, assert_close: AssertClose, device: str
) -> None:
    x = rng.standard_normal(shape, np.float32)
    positions = rng.integers(0, 200_000, shape[0], np.int32)
    inv_freq = (1e4 ** -(np.arange(half) / max(1, half))).astype(np.float32)
    at = (torch.from_numpy(each).to(device) for each in (x, positions, inv_freq))
    assert_close(rope(*at, 1.25).cpu().numpy(), reference(x, positions, inv_freq, 1.25), "sum")


def test_bf16_in_place_in_a_wider_buffer(rng: np.random.Generator, device: str) -> None:
    wide = torch.from_numpy(rng.standard_normal((33, 200), np.float32)).to(device, torch.bfloat16)
    before = wide.clone()
    heads = wide[:, 8:136].unflatten(1, (2, 64))
    positions, inv_freq = np.arange(33, dtype=np.int32), np.float32(0.9) ** np.arange(20, dtype=np.float32)
    expected = reference(heads.float().cpu().numpy(), positions, inv_freq)
    rope_into(heads, torch.from_numpy(positions).to(device), torch.from_numpy(inv_freq).to(device), out=heads)
    np.testing.assert_allclose(heads.float().cpu().numpy(), expected, rtol=2**-7, atol=1e-5)
    assert torch.equal(wide[:, :8], before[:, :8]) and torch.equal(wide[:, 136:], before[:, 136:])


def test_refuses_more_frequencies_than_pairs_and_a_scale_that_is_none() -> None:
    with pytest.raises(ValueError, match="rotates 10 channels, a head has 8"):
        rope(torch.zeros(1, 1, 8), torch.zeros(1, dtype=torch.int32), torch.zeros(5))
    with pytest.raises(ValueError, match="scale must be finite, got nan"):
        rope(torch.zeros(1, 1, 8), torch.zeros(1, dtype=torch.int32), torch.zeros(4), float("nan"))
