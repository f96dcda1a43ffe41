"""causal_conv's Triton kernels against the reference: steps of several sequences, states, padding."""

from typing import Any

import numpy as np
import pytest
import torch

from ftd.kernels import causal_conv_ref
from ftd.kernels.causal_conv_triton import causal_conv, causal_conv_into


def run(device: str, x: Any, weight: Any, state: Any, places: Any, **options: Any) -> tuple[Any, Any]:
    """Return results and the state after the step."""
    tensors = [torch.from_numpy(each.copy()).to(device) for each in (x, weight, state, *places)]
    out = causal_conv_into(*tensors, **options) if options else causal_conv(*tensors)
    return out.cpu().numpy(), tensors[2].cpu().numpy()


@pytest.mark.parametrize("taps", [2, 4, 7])
@pytest.mark.parametrize("lengths", [(1,), (1, 1, 1), (3, 0, 9), (40,), (2, 31, 1)])
def test_equals_the_reference(
    device: str, rng: np.random.Generator, taps: int, lengths: tuple[int, ...]
) -> None:
    channels = 150
    x = rng.standard_normal((sum(lengths), channels), np.float32)
    weight = rng.standard_normal((channels, taps), np.float32)
    state = rng.standard_normal((5, taps - 1, channels), np.float32)
    starts = np.cumsum([0, *lengths]).astype(np.int32)
    # The first sequence is new, the others go on
    positions = np.concatenate([np.arange(n) + (i > 0) * 7 for i, n in enumerate(lengths)]).astype(np.int32)
    slots = np.array([3, 0, 4][: len(lengths)], np.int32)
    out, kept = run(device, x, weight, state, (starts, positions, slots))
    wanted = causal_conv_ref.causal_conv(x, weight, state, starts, positions, slots)
    np.testing.assert_allclose(out, wanted, rtol=2e-5, atol=2e-6)
    np.testing.assert_array_equal(kept, state)


@pytest.mark.parametrize("lengths", [(1, 1, 1), (10, 4, 9)])
def test_padding_is_inert(device: str, rng: np.random.Generator, lengths: tuple[int, ...]) -> None:
    x = rng.standard_normal((sum(lengths), 20), np.float32)
    weight = rng.standard_normal((20, 4), np.float32)
    state = rng.standard_normal((3, 3, 20), np.float32)
    starts = np.cumsum([0, *lengths]).astype(np.int32)
    positions = np.full(sum(lengths), 5, np.int32)
    slots = np.array([2, 0, 1], np.int32)
    kv_len = torch.tensor([6, 0, 6], dtype=torch.int32, device=device)
    target = torch.full(x.shape, 77.0, device=device)
    out, kept = run(device, x, weight, state, (starts, positions, slots), kv_len=kv_len, out=target)
    before = state.copy()
    wanted = causal_conv_ref.causal_conv(x, weight, state, starts, positions, slots)
    wanted[starts[1] : starts[2]], state[0] = 77, before[0]
    np.testing.assert_allclose(out, wanted, rtol=2e-5, atol=2e-6)
    np.testing.assert_array_equal(kept, state)


def test_refuses_what_does_not_fit(device: str) -> None:
    x, weight = torch.zeros((2, 8), device=device), torch.zeros((8, 4), device=device)
    places = [torch.zeros(n, dtype=torch.int32, device=device) for n in (2, 2, 1)]
    with pytest.raises(ValueError, match=r"state must be float32 \[slots, 3, 8\]"):
        causal_conv(x, weight, torch.zeros((1, 4, 8), device=device), *places)
    with pytest.raises(ValueError, match=r"positions must be int32 \[2\]"):
        causal_conv(x, weight, torch.zeros((1, 3, 8), device=device), places[0], places[2], places[2])
