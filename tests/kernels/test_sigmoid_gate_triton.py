"""sigmoid_gate's Triton kernel against the reference."""

import numpy as np
import pytest
import torch

from ftd.kernels import sigmoid_gate_ref
from ftd.kernels.sigmoid_gate_triton import sigmoid_gate, sigmoid_gate_into


@pytest.mark.parametrize("shape", [(1, 1), (3, 77), (2, 1031), (0, 5)])
def test_equals_the_reference(device: str, rng: np.random.Generator, shape: tuple[int, int]) -> None:
    x, gate = (rng.standard_normal(shape, np.float32) * np.float32(30) for _ in range(2))
    wide = torch.from_numpy(np.concatenate([x, gate], axis=1)).to(device)
    values, gates = wide.split(shape[1], dim=1)
    new = sigmoid_gate(values, gates)
    np.testing.assert_array_equal(values.cpu().numpy(), x)
    out = sigmoid_gate_into(values, gates, out=values)
    assert torch.equal(out, new)
    wanted = sigmoid_gate_ref.sigmoid_gate(x, gate)
    # A card's exp of x rounds x * log2(e): 2^-24 of x is in the result (an H200 was off by 3.4e-6 of a value)
    error = (1e-6 + 2.0**-24 * np.abs(gate)) * np.abs(wanted) + 1e-38
    assert (np.abs(out.cpu().numpy() - wanted) <= error).all()
    np.testing.assert_array_equal(gates.cpu().numpy(), gate)


def test_refuses_what_does_not_fit(device: str) -> None:
    with pytest.raises(ValueError, match=r"gate must be float32 or bfloat16 \[2, 3\]"):
        sigmoid_gate(torch.zeros((2, 3), device=device), torch.zeros((2, 4), device=device))
