"""embedding on a GPU against the reference, for every format; without a card in Triton's interpreter."""

import numpy as np
import pytest
import torch
from weights import random_matrix

from ftd.kernels.device_matrix import DeviceMatrix
from ftd.kernels.embedding_ref import embedding as reference
from ftd.kernels.embedding_triton import embedding, embedding_into
from ftd.kernels.quant import FORMATS


@pytest.mark.parametrize("name", list(FORMATS))
def test_equals_the_reference(name: str, rng: np.random.Generator, device: str) -> None:
    weight = random_matrix(name, 150, {1: 131, 16: 176, 32: 160, 256: 256}[FORMATS[name].block], rng)
    ids = np.array([149, 0, 7, 7, 128, 127, 3, 1, 99], np.int32)
    actual = embedding(torch.from_numpy(ids).to(device), DeviceMatrix.upload([weight], device), 2.5)
    expected = reference(ids, weight, 2.5)
    np.testing.assert_allclose(actual.cpu().numpy(), expected, rtol=2e-7, atol=3e-7 * np.abs(expected).max())


def test_ids_of_padding_give_finite_rows_in_a_wider_bf16_buffer(
    rng: np.random.Generator, device: str
) -> None:
    weight = random_matrix("q8_0", 5, 64, rng)
    ids = torch.tensor([-1, 4, 5, 2**31 - 1], dtype=torch.int32, device=device)
    wide = torch.full((4, 96), 7.0, dtype=torch.bfloat16, device=device)
    embedding_into(ids, DeviceMatrix.upload([weight], device), out=wide[:, 16:80])
    rows = wide[:, 16:80].float().cpu().numpy()
    np.testing.assert_allclose(rows[1], reference(np.array([4], np.int32), weight)[0], rtol=2**-7)
    assert np.isfinite(rows).all()
    assert (wide[:, :16] == 7).all() and (wide[:, 80:] == 7).all()


def test_no_tokens_and_wrong_arguments(rng: np.random.Generator) -> None:
    weight = DeviceMatrix.upload([random_matrix("bf16", 5, 8, rng)], "cpu")
    assert embedding(torch.zeros(0, dtype=torch.int32), weight).shape == (0, 8)
    with pytest.raises(ValueError, match="ids must be int32"):
        embedding(torch.zeros(2, dtype=torch.int64), weight)
    with pytest.raises(ValueError, match="out must be"):
        embedding_into(torch.zeros(2, dtype=torch.int32), weight, out=torch.zeros(2, 9))
