"""kv_store on a GPU against the reference."""

import numpy as np
import pytest
import torch

from ftd.kernels.kv_store_ref import kv_store as reference
from ftd.kernels.kv_store_triton import kv_store


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    ("tokens", "heads", "channels", "page_size"),
    [(1, 2, 64, 32), (2, 1, 80, 16), (70, 2, 64, 32), (9, 1, 37, 5)],
)
def test_equals_the_reference(
    tokens: int, heads: int, channels: int, page_size: int, dtype: str, rng: np.random.Generator, device: str
) -> None:
    pages = -(-tokens // page_size) + 2
    k, v = rng.standard_normal((2, tokens, heads, channels), np.float32)
    index = rng.permutation(pages * page_size)[:tokens].astype(np.int32)
    expected = [
        np.full((pages, heads, channels, page_size), np.nan, dtype),
        np.full((pages, heads, page_size, channels), np.nan, dtype),
    ]
    actual = [torch.from_numpy(side.copy()).to(device) for side in expected]
    reference(k, v, expected[0], expected[1], index)
    kv_store(
        *(torch.from_numpy(side).to(device) for side in (k, v)), *actual, torch.from_numpy(index).to(device)
    )
    for mine, theirs in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(mine.cpu().numpy(), theirs)


def test_padding_is_not_stored_and_inputs_may_be_columns_in_bf16(device: str) -> None:
    qkv = torch.arange(3 * 40, device=device).reshape(3, 40).to(torch.bfloat16)
    k_pages = torch.zeros((2, 1, 8, 4), dtype=torch.float16, device=device)
    v_pages = torch.zeros((2, 1, 4, 8), dtype=torch.float16, device=device)
    k, v = qkv[:, 16:24].unflatten(1, (1, 8)), qkv[:, 24:32].unflatten(1, (1, 8))
    kv_store(k, v, k_pages, v_pages, torch.tensor([6, -1, -1], dtype=torch.int32, device=device))
    assert torch.equal(k_pages[1, 0, :, 2], k[0, 0].half())
    assert torch.equal(v_pages[1, 0, 2], v[0, 0].half())
    assert k_pages.count_nonzero() == v_pages.count_nonzero() == 8


def test_refuses_pages_of_other_heads() -> None:
    k = torch.zeros(1, 2, 8)
    with pytest.raises(ValueError, match="k_pages must be"):
        kv_store(k, k, torch.zeros(1, 1, 8, 4), torch.zeros(1, 1, 4, 8), torch.zeros(1, dtype=torch.int32))
