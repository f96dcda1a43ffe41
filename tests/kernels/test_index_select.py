"""index_select against torch's topk in float64, for every implementation; attention to what it selects."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ftd.kernels._pool import Pool
from tests.kernels.test_latent_attention import Case, arrays

Get = Callable[[str], Callable[..., Any]]
AssertClose = Callable[..., None]

CASES = {
    "decode": Case(16, 32, 16, 16, ((1, 9), (1, 20), (1, 130), (1, 257))),
    "prefill": Case(16, 24, 16, 4, ((70, 70), (0, 9), (5, 90))),
    "float32 pages, odd sizes": Case(15, 37, 29, 5, ((9, 71), (1, 71)), dtype="f4"),
}
COUNT = 20


def arguments(case: Case, rng: np.random.Generator) -> dict[str, Any]:
    a = arrays(case, rng)
    return {name: a[name] for name in ("q", "pages", "page_table", "q_start", "kv_len", "positions")} | {
        "weights": rng.standard_normal(a["q"].shape[:2], np.float32),
        "count": COUNT,
    }


def torch_bits(case: Case, a: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Return [T, keys] bools: what torch's topk takes."""
    bits = np.zeros((len(a["q"]), a["page_table"].shape[1] * case.page_size), bool)
    for b in range(len(case.sequences)):
        for token in range(int(a["q_start"][b]), int(a["q_start"][b + 1])):
            seen = int(a["positions"][token]) + 1
            table, size = a["page_table"][b], case.page_size
            keys = np.stack([a["pages"][table[key // size], key % size] for key in range(seen)])
            scores = torch.relu(torch.from_numpy(a["q"][token]).double() @ torch.from_numpy(keys).double().T)
            total = torch.from_numpy(a["weights"][token]).double() @ scores
            bits[token, torch.topk(total, min(COUNT, seen)).indices.numpy()] = True
    return bits


@pytest.mark.parametrize("name", CASES)
def test_equals_torch(get: Get, rng: np.random.Generator, name: str) -> None:
    a = arguments(CASES[name], rng)
    selected = get("index_select")(**a)
    expected = torch_bits(CASES[name], a)
    bits = np.unpackbits(selected.view(np.uint8), axis=1, bitorder="little").astype(bool)
    np.testing.assert_array_equal(bits[:, : expected.shape[1]], expected)
    assert not bits[:, expected.shape[1] :].any()


@pytest.mark.parametrize("name", CASES)
def test_attention_to_the_selected_keys_alone(
    get: Get, pools: tuple[Pool | None, ...], assert_close: AssertClose, rng: np.random.Generator, name: str
) -> None:
    case = CASES[name]
    a, b = arguments(case, rng), arrays(case, rng)
    b |= {name: a[name] for name in ("pages", "page_table")}
    bits = torch_bits(case, a)
    padded = np.zeros((len(bits), -(-bits.shape[1] // 64) * 64), bool)
    padded[:, : bits.shape[1]] = bits
    selected = np.packbits(padded, axis=1, bitorder="little").view(np.uint64)
    expected = np.zeros((*b["q"].shape[:2], case.latent))
    for sequence in range(len(case.sequences)):
        for token in range(int(b["q_start"][sequence]), int(b["q_start"][sequence + 1])):
            table, size = b["page_table"][sequence], case.page_size
            chosen = np.flatnonzero(bits[token])
            keys = np.stack([b["pages"][table[key // size], key % size] for key in chosen]).astype(np.float64)
            weights = torch.softmax(
                torch.from_numpy(b["q"][token].astype(np.float64) @ keys.T * b["scale"]), 1
            )
            expected[token] = weights.numpy() @ keys[:, : case.latent]
    for pool in pools:
        actual = get("latent_attention")(**b, selected=selected, pool=pool)
        assert_close(actual, expected, "softmax")


def test_of_equal_scores_the_first_are_taken(get: Get, rng: np.random.Generator) -> None:
    a = arguments(Case(2, 16, 8, 16, ((1, 100),)), rng)
    a["weights"][:] = 0
    bits = np.unpackbits(get("index_select")(**a).view(np.uint8), axis=1, bitorder="little")
    assert bits[0, :COUNT].all() and bits.sum() == COUNT


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": 0}, "count must lie in"),
        ({"weights": np.zeros((4, 3), np.float32)}, "weights must be"),
        ({"kv_len": np.array([9, 20, 130, 999], np.int32)}, "kv_len must lie in"),
    ],
)
def test_refusals(get: Get, rng: np.random.Generator, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        get("index_select")(**(arguments(CASES["decode"], rng) | changes))


def test_a_selection_must_cover_the_pages(get: Get, rng: np.random.Generator) -> None:
    a = arrays(CASES["decode"], rng)
    with pytest.raises(ValueError, match="a bit for each of"):
        get("latent_attention")(**a, selected=np.zeros((4, 1), np.uint64))
