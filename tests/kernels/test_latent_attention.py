"""latent_attention against torch's scaled_dot_product_attention in float64, for every implementation.

Pages that no sequence owns, and the places past a sequence's end, hold NaN.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from ftd.kernels._pool import Pool

Get = Callable[[str], Callable[..., Any]]
AssertClose = Callable[..., None]


@dataclass(frozen=True)
class Case:
    """A batch: heads, channels of a row, of which are latent; (new tokens, context) of each sequence."""

    heads: int
    channels: int
    latent: int
    page_size: int
    sequences: tuple[tuple[int, int], ...]
    dtype: str = "f2"


CASES = {
    "one token": Case(4, 48, 32, 16, ((1, 1),)),
    "tile edges, decode": Case(5, 40, 32, 32, ((1, 63), (1, 64), (1, 65), (1, 129), (1, 257))),
    "prefill over tiles": Case(4, 48, 32, 32, ((150, 150),)),
    "chunk after a prefix": Case(3, 48, 32, 16, ((37, 200),)),
    "decode beside prefill": Case(2, 24, 16, 4, ((1, 90), (30, 30), (0, 9), (1, 5))),
    "float32 pages": Case(6, 48, 32, 16, ((1, 130), (20, 70)), dtype="f4"),
    "odd sizes": Case(3, 37, 29, 5, ((1, 71), (9, 71)), dtype="f4"),
    "real shape": Case(16, 576, 512, 32, ((1, 70), (5, 9))),
    "few rows, many keys": Case(5, 24, 16, 16, ((1, 300), (3, 500), (20, 300))),
    "more rows than a block": Case(130, 16, 8, 8, ((1, 20), (3, 20))),
}


def arrays(case: Case, rng: np.random.Generator) -> dict[str, Any]:
    """Return the arguments of latent_attention for ``case``."""
    size, longest = case.page_size, max(context for _, context in case.sequences)
    columns = -(-longest // size) + 1
    count = len(case.sequences) * columns + 2
    table = rng.permutation(count)[: len(case.sequences) * columns].reshape(-1, columns).astype(np.int32)
    pages = np.full((count, size, case.channels), np.nan, case.dtype)
    for row, (_, context) in zip(table, case.sequences, strict=True):
        page, offset = row[np.arange(context) // size], np.arange(context) % size
        pages[page, offset] = rng.standard_normal((context, case.channels))
    new = [tokens for tokens, _ in case.sequences]
    return {
        "q": rng.standard_normal((sum(new), case.heads, case.channels), np.float32) * 2,
        "pages": pages,
        "page_table": table,
        "q_start": np.cumsum([0, *new]).astype(np.int32),
        "kv_len": np.array([context for _, context in case.sequences], np.int32),
        "positions": np.concatenate([np.arange(c - t, c) for t, c in case.sequences]).astype(np.int32),
        "latent": case.latent,
        "scale": 1.3 / np.sqrt(case.channels),
    }


def torch_attention(case: Case, a: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Return what torch computes with the rows gathered one by one."""
    out = torch.zeros((*a["q"].shape[:2], case.latent), dtype=torch.float64)
    for b, (tokens, context) in enumerate(case.sequences):
        first = int(a["q_start"][b])
        q = torch.from_numpy(a["q"][first : first + tokens]).double().transpose(0, 1)
        size, table = case.page_size, a["page_table"][b]
        rows = np.stack([a["pages"][table[key // size], key % size] for key in range(context)])
        keys = torch.from_numpy(rows.astype(np.float64)).expand(case.heads, -1, -1)
        seen = torch.arange(context - tokens, context)[:, None] >= torch.arange(context)
        one = torch.nn.functional.scaled_dot_product_attention(
            q, keys, keys[:, :, : case.latent], attn_mask=seen, scale=a["scale"]
        )
        out[first : first + tokens] = one.transpose(0, 1)
    return out.numpy()


@pytest.mark.parametrize("name", CASES)
def test_equals_torch(get: Get, assert_close: AssertClose, rng: np.random.Generator, name: str) -> None:
    a = arrays(CASES[name], rng)
    assert_close(get("latent_attention")(**a), torch_attention(CASES[name], a), "softmax")


@pytest.mark.parametrize("name", CASES)
def test_bits_do_not_depend_on_threads(
    isa: str, pools: tuple[Pool | None, ...], rng: np.random.Generator, name: str
) -> None:
    from ftd.kernels._latent_attention_cy import latent_attention

    a = arrays(CASES[name], rng)
    alone = latent_attention(**a)
    for pool in pools:
        np.testing.assert_array_equal(latent_attention(**a, pool=pool), alone)


@pytest.mark.parametrize("name", ["prefill over tiles", "odd sizes"])
def test_bits_do_not_depend_on_how_tokens_are_divided_into_steps(
    isa: str, pools: tuple[Pool | None, ...], rng: np.random.Generator, name: str
) -> None:
    from ftd.kernels._latent_attention_cy import latent_attention

    a = arrays(replace(CASES[name], sequences=((90, 150),)), rng)
    whole = latent_attention(**a)
    for chunk in (1, 7, 64):
        for first in range(0, 90, chunk):
            tokens = slice(first, min(first + chunk, 90))
            b = a | {"q": a["q"][tokens], "positions": a["positions"][tokens]}
            b["q_start"] = np.array([0, len(b["q"])], np.int32)
            b["kv_len"] = b["positions"][-1:] + np.int32(1)
            np.testing.assert_array_equal(latent_attention(**b, pool=pools[1]), whole[tokens])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"latent": 0}, "latent must lie in 1 to 48"),
        ({"latent": 49}, "latent must lie in 1 to 48"),
        ({"pages": np.zeros((9, 16, 47), "f2")}, "pages must be"),
        ({"kv_len": np.array([999], np.int32)}, "kv_len must lie in"),
        ({"page_table": np.array([[99, 99]], np.int32)}, "page_table must lie in"),
        ({"positions": np.array([1], np.int32)}, "positions must lie in"),
        ({"q_start": np.array([0, 2], np.int32)}, "q_start must rise"),
    ],
)
def test_refusals(get: Get, rng: np.random.Generator, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        get("latent_attention")(**(arrays(CASES["one token"], rng) | changes))
