"""qkv_post against rms_norm, rope and kv_store of the references, one after the other."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from ftd.kernels.kv_store_ref import kv_store
from ftd.kernels.qkv_post_triton import qkv_post
from ftd.kernels.rms_norm_ref import rms_norm
from ftd.kernels.rope_ref import rope

AssertClose = Callable[..., None]


@dataclass(frozen=True)
class Case:
    """H heads of q over G of C channels, of which 2*half are rotated."""

    tokens: int
    heads: int
    groups: int
    channels: int
    half: int
    norm: bool = True
    dtype: torch.dtype = torch.float32


CASES = [
    Case(1, 9, 3, 64, 32),
    Case(2, 4, 1, 80, 40, norm=False),
    Case(9, 2, 1, 128, 32),
    Case(17, 6, 2, 96, 48),
    Case(70, 1, 1, 64, 20, norm=False),
    Case(17, 2, 1, 64, 0),
    Case(4, 4, 2, 64, 32, dtype=torch.bfloat16),
    Case(40, 2, 1, 64, 32, dtype=torch.bfloat16),
    Case(70, 2, 1, 64, 32, dtype=torch.bfloat16),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_the_references(
    case: Case, rng: np.random.Generator, assert_close: AssertClose, device: str
) -> None:
    tokens, heads, groups, channels = case.tokens, case.heads, case.groups, case.channels
    widths = [heads * channels, groups * channels, groups * channels]
    rows = torch.from_numpy(rng.standard_normal((tokens, sum(widths) + 8), np.float32)).to(device, case.dtype)
    q, k, v = rows[:, 8:].split(widths, dim=1)
    weights = rng.standard_normal((2, channels), np.float32) if case.norm else None
    inv_freq = (1e5 ** -(np.arange(case.half) / max(1, case.half))).astype(np.float32)
    positions = rng.integers(0, 100_000, tokens, np.int32)
    pages = -(-tokens // 32) + 1
    index = rng.permutation(pages * 32)[:tokens].astype(np.int32)
    index[1::5] = -1
    k_pages = torch.zeros((pages, groups, channels, 32), dtype=torch.float32, device=device)
    v_pages = torch.zeros((pages, groups, 32, channels), dtype=torch.float32, device=device)

    expected = [side.float().cpu().numpy().reshape(tokens, -1, channels) for side in (q, k, v)]
    for i in range(2):
        if weights is not None:
            flat = rms_norm(expected[i].reshape(-1, channels), weights[i], 1e-5)
            expected[i] = flat.reshape(expected[i].shape)
        expected[i] = rope(expected[i], positions, inv_freq, 1.1)
    expected_pages = [side.cpu().numpy().copy() for side in (k_pages, v_pages)]
    kept = index >= 0
    kv_store(expected[1][kept], expected[2][kept], *expected_pages, index[kept])
    k_before, v_before = k.clone(), v.clone()

    qkv_post(
        q,
        k,
        v,
        k_pages,
        v_pages,
        torch.from_numpy(index).to(device),
        torch.from_numpy(positions).to(device),
        torch.from_numpy(inv_freq).to(device) if case.half else None,
        1.1,
        *(torch.from_numpy(each).to(device) for each in (weights if weights is not None else ())),
        **{"eps": 1e-5},
    )

    rotated = q.float().cpu().numpy().reshape(expected[0].shape)
    if case.dtype == torch.float32:
        assert_close(rotated, expected[0], "sum")
    else:
        np.testing.assert_allclose(rotated, expected[0], rtol=2**-7, atol=1e-5)
    assert_close(k_pages.cpu().numpy(), expected_pages[0], "sum")
    assert_close(v_pages.cpu().numpy(), expected_pages[1], "copy")
    assert torch.equal(k, k_before) and torch.equal(v, v_before)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"q": torch.zeros(2, 12)}, "width 12 is no multiple of 8"),
        ({"k": torch.zeros(2, 16)}, "k must be"),
        ({"inv_freq": torch.zeros(5)}, "rotates 10 channels"),
        ({"q_norm": torch.ones(8)}, "come together"),
        ({"q_norm": torch.ones(8), "k_norm": torch.ones(4)}, "k_norm must be"),
        ({"positions": torch.zeros(3, dtype=torch.int32)}, "positions must be"),
    ],
)
def test_refuses(change: dict[str, torch.Tensor], match: str) -> None:
    arguments = {
        "q": torch.zeros(2, 16),
        "k": torch.zeros(2, 8),
        "v": torch.zeros(2, 8),
        "k_pages": torch.zeros(1, 1, 8, 4),
        "v_pages": torch.zeros(1, 1, 4, 8),
        "kv_index": torch.zeros(2, dtype=torch.int32),
        "positions": torch.zeros(2, dtype=torch.int32),
        "inv_freq": torch.zeros(4),
    }
    with pytest.raises(ValueError, match=match):
        qkv_post(**(arguments | change))
