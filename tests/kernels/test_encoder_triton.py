"""layer_norm's, gelu's and position_embedding's Triton kernels against their references."""

import numpy as np
import pytest
import torch

from ftd.kernels import gelu_ref, layer_norm_ref, position_embedding_ref
from ftd.kernels.gelu_triton import gelu, gelu_into
from ftd.kernels.layer_norm_triton import layer_norm, layer_norm_into
from ftd.kernels.position_embedding_triton import last_positions, position_embedding, position_embedding_into


@pytest.mark.parametrize(("tokens", "width"), [(1, 1), (3, 64), (2, 1030)])
def test_layer_norm(device: str, rng: np.random.Generator, tokens: int, width: int) -> None:
    x = rng.standard_normal((tokens, width), np.float32) + 3
    weight, bias = (rng.standard_normal(width, np.float32) for _ in range(2))
    wanted = layer_norm_ref.layer_norm(x, weight, bias, 1e-6)
    tensors = [torch.from_numpy(each).to(device) for each in (x, weight, bias)]
    actual = layer_norm(*tensors, 1e-6)
    assert np.abs(actual.cpu().numpy() - wanted).max() <= 2e-6 * np.abs(wanted).max()
    assert torch.equal(layer_norm_into(*tensors, 1e-6, out=tensors[0]), actual)


@pytest.mark.parametrize("width", [1, 100, 1100])
def test_gelu(device: str, rng: np.random.Generator, width: int) -> None:
    x = rng.standard_normal((2, width), np.float32) * 4
    values = torch.tensor(x, device=device)
    actual = gelu(values)
    assert np.abs(actual.cpu().numpy() - gelu_ref.gelu(x)).max() <= 1e-6 * np.abs(x).max()
    assert torch.equal(gelu_into(values, out=values), actual)


def test_position_embedding(device: str, rng: np.random.Generator) -> None:
    x, table = rng.standard_normal((4, 30), np.float32), rng.standard_normal((9, 30), np.float32)
    positions = np.array([0, 8, 3, 3], np.int32)
    tensors = [torch.tensor(each, device=device) for each in (x, positions, table)]
    wanted = position_embedding_ref.position_embedding(x, positions, table)
    np.testing.assert_array_equal(position_embedding(*tensors).cpu().numpy(), wanted)
    position_embedding_into(*tensors, out=tensors[0])
    np.testing.assert_array_equal(tensors[0].cpu().numpy(), wanted)


def test_last_positions_of_sequences_and_padding(device: str) -> None:
    starts, lengths = (
        torch.tensor(each, dtype=torch.int32, device=device) for each in ([0, 3, 3, 70], [3, 0, 90])
    )
    out = last_positions(starts, lengths, out=torch.full((72,), -9, dtype=torch.int32, device=device))
    assert out.tolist() == [2] * 3 + [89] * 67 + [0] * 2


def test_refuse_what_does_not_fit(device: str) -> None:
    x = torch.zeros((2, 8), device=device)
    with pytest.raises(ValueError, match=r"weight must be float32 \[8\]"):
        layer_norm(x, x[0, :7], x[0])
    with pytest.raises(ValueError, match="table must be"):
        position_embedding(x, torch.zeros(2, dtype=torch.int32, device=device), x[:, :7])
