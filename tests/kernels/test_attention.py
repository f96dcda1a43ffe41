"""attention against torch's scaled_dot_product_attention in float64, for every implementation.

The keys and values of each sequence are gathered from shuffled pages by the test itself; pages that no
sequence owns, and the places past a sequence's end, hold NaN.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from attention_cases import Case, arrays

from ftd.kernels._pool import Pool

Get = Callable[[str], Callable[..., Any]]
AssertClose = Callable[..., None]


CASES = {
    "one token": Case(9, 3, 64, ((1, 1),)),
    "page edges, decode": Case(4, 2, 64, ((1, 15), (1, 16), (1, 17)), page_size=16),
    "page edges, prefill": Case(4, 2, 64, ((15, 15), (16, 16), (17, 17), (3, 17)), page_size=16),
    "tile and split edges": Case(
        3, 1, 64, ((1, 63), (1, 64), (1, 65), (1, 127), (1, 128), (1, 129), (1, 257))
    ),
    "prefill over tiles": Case(9, 3, 64, ((200, 200),)),
    "chunk after a prefix": Case(9, 3, 64, ((37, 300),)),
    "decode beside prefill": Case(6, 3, 64, ((1, 300), (70, 70), (0, 40), (1, 5))),
    "float32 pages": Case(9, 3, 64, ((1, 130), (40, 140)), dtype="f4"),
    "80 channels": Case(4, 2, 80, ((1, 200), (33, 90)), page_size=16),
    "96 channels": Case(4, 1, 96, ((1, 200), (33, 90)), page_size=16),
    "128 channels": Case(8, 2, 128, ((1, 200), (33, 90)), page_size=64),
    "256 channels": Case(4, 1, 256, ((1, 200), (33, 90))),
    "odd channels and pages": Case(6, 2, 37, ((1, 71), (9, 71)), page_size=5, dtype="f4"),
    "no grouping": Case(3, 3, 64, ((1, 150), (20, 150))),
    "eleven heads a group": Case(11, 1, 64, ((1, 150), (20, 150))),
    "a group wider than a block": Case(130, 1, 16, ((1, 20), (3, 20)), page_size=16),
    "window": Case(4, 2, 64, ((1, 300), (90, 300), (1, 20)), page_size=16, window=50),
    "window of one": Case(2, 1, 64, ((1, 70), (5, 70)), page_size=16, window=1),
    "window over split edges": Case(2, 1, 64, ((1, 257), (130, 300)), page_size=16, window=128),
    "sinks": Case(4, 2, 64, ((1, 200), (30, 60)), page_size=16, sinks=True),
    "sinks and window": Case(8, 1, 64, ((1, 200), (30, 160)), page_size=16, window=33, sinks=True),
    "both directions": Case(12, 12, 32, ((1, 1), (2, 2), (31, 31), (33, 33), (257, 257)), causal=False),
    "both directions, a group": Case(6, 2, 37, ((1, 71), (9, 71)), page_size=5, dtype="f4", causal=False),
}


def dense(pages: Any, row: Any, context: int, axis: int) -> torch.Tensor:
    """Return [G, context, C] f64: the tokens of one sequence, gathered one by one."""
    size = pages.shape[axis]
    tokens = [pages[row[key // size]].take(key % size, axis=axis - 1) for key in range(context)]
    return torch.from_numpy(np.stack(tokens, axis=1).astype(np.float64))


def torch_attention(case: Case, a: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Return what torch computes; a sink is one more key whose score is the sink and whose value is zero."""
    out = torch.zeros(a["q"].shape, dtype=torch.float64)
    group = case.heads // case.groups
    for b, (tokens, context) in enumerate(case.sequences):
        first = int(a["q_start"][b])
        q = torch.from_numpy(a["q"][first : first + tokens]).double().transpose(0, 1)
        k = dense(a["k_pages"], a["page_table"][b], context, 3).repeat_interleave(group, dim=0)
        v = dense(a["v_pages"], a["page_table"][b], context, 2).repeat_interleave(group, dim=0)
        behind = torch.arange(context - tokens, context)[:, None] - torch.arange(context)
        seen = ((behind >= 0) | (not case.causal)) & (behind < (case.window or context + 1))
        mask = torch.zeros(behind.shape, dtype=torch.float64).masked_fill(~seen, -torch.inf)
        mask = mask.expand(case.heads, *behind.shape)
        if a["sinks"] is not None:
            sink = torch.from_numpy(a["sinks"]).double()[:, None, None].expand(case.heads, tokens, 1)
            mask = torch.cat([mask, sink], dim=2)
            nothing = torch.zeros(case.heads, 1, case.channels, dtype=torch.float64)
            k, v = torch.cat([k, nothing], dim=1), torch.cat([v, nothing], dim=1)
        one = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=a["scale"])
        out[first : first + tokens] = one.transpose(0, 1)
    return out.numpy()


@cache
def expected(name: str) -> tuple[dict[str, Any], np.ndarray[Any, Any]]:
    """Return arguments and torch's result for a case, made once for all implementations."""
    a = arrays(CASES[name], np.random.default_rng(7))
    return a, torch_attention(CASES[name], a)


@pytest.mark.parametrize("name", CASES)
def test_equals_torch(get: Get, assert_close: AssertClose, name: str) -> None:
    a, result = expected(name)
    assert_close(get("attention")(**a), result, "softmax")


@pytest.mark.parametrize("name", CASES)
def test_bits_do_not_depend_on_threads(
    isa: str, pools: tuple[Pool | None, ...], rng: np.random.Generator, name: str
) -> None:
    from ftd.kernels._attention_cy import attention

    a = arrays(CASES[name], rng)
    alone = attention(**a)
    for pool in pools:
        np.testing.assert_array_equal(attention(**a, pool=pool), alone)


@pytest.mark.parametrize(
    "name", ["prefill over tiles", "window", "sinks", "odd channels and pages", "256 channels"]
)
def test_bits_do_not_depend_on_how_tokens_are_divided_into_steps(
    isa: str, rng: np.random.Generator, name: str
) -> None:
    """One prefill, chunks of any size and single tokens, which take another path, give the same bits."""
    from ftd.kernels._attention_cy import attention

    case = Case(**{**CASES[name].__dict__, "sequences": ((150, 300),)})
    a = arrays(case, rng)
    whole = attention(**a)
    for chunk in (1, 2, 7, 64, 149):
        for first in range(0, 150, chunk):
            tokens = slice(first, min(first + chunk, 150))
            b = a | {"q": a["q"][tokens], "positions": a["positions"][tokens]}
            b["q_start"] = np.array([0, len(b["q"])], np.int32)
            b["kv_len"] = b["positions"][-1:] + np.int32(1)
            np.testing.assert_array_equal(attention(**b), whole[tokens])


def test_a_batch_equals_its_sequences_alone(isa: str, rng: np.random.Generator) -> None:
    from ftd.kernels._attention_cy import attention

    a = arrays(CASES["decode beside prefill"], rng)
    whole = attention(**a)
    for b, (tokens, _) in enumerate(CASES["decode beside prefill"].sequences):
        rows = slice(int(a["q_start"][b]), int(a["q_start"][b + 1]))
        one = a | {
            "q": a["q"][rows],
            "positions": a["positions"][rows],
            "q_start": np.array([0, tokens], np.int32),
        }
        one |= {"page_table": a["page_table"][b : b + 1], "kv_len": a["kv_len"][b : b + 1]}
        np.testing.assert_array_equal(attention(**one), whole[rows])


def test_scores_far_apart_neither_overflow_nor_underflow(get: Get, rng: np.random.Generator) -> None:
    a = arrays(Case(1, 1, 16, ((1, 200),), page_size=16, dtype="f4"), rng)
    a["q"] *= 1000
    a["scale"] = 10.0
    score = dense(a["k_pages"], a["page_table"][0], 200, 3)[0].numpy() @ a["q"][0, 0].astype(np.float64)
    best = dense(a["v_pages"], a["page_table"][0], 200, 2)[0].numpy()[score.argmax()]
    np.testing.assert_allclose(get("attention")(**a)[0, 0], best, rtol=1e-6)


def test_nan_in_one_query_stays_in_its_head(get: Get, rng: np.random.Generator) -> None:
    a = arrays(Case(4, 2, 64, ((3, 90), (1, 90)), page_size=16), rng)
    a["q"][1, 2, 5] = a["q"][3, 0, 63] = np.nan
    broken = np.isnan(get("attention")(**a))
    assert broken[1, 2].all()
    assert broken[3, 0].all()
    assert broken.sum() == 2 * 64


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"q": np.zeros((2, 3, 64), np.float32)},
            "query heads must be a multiple of key-value heads, got 3 and 2",
        ),
        ({"q_start": np.array([0, 3], np.int32)}, r"q_start must rise from 0 to 2, got \[0, 3\]"),
        ({"kv_len": np.array([49], np.int32)}, "kv_len must lie in 0 to 48, got 49"),
        ({"page_table": np.array([[0, 9, 0]], np.int32)}, "page_table must lie in 0 to 4, got 9"),
        ({"positions": np.array([19, 20], np.int32)}, "positions must lie in 0 to 19, got 20"),
        ({"sinks": np.zeros(3, np.float32)}, r"sinks must be float32 \[4\]"),
        ({"window": -1}, "window must be at least 0, got -1"),
    ],
)
def test_refuses(get: Get, rng: np.random.Generator, changed: dict[str, Any], message: str) -> None:
    a = arrays(Case(4, 2, 64, ((2, 20),), page_size=16), rng)
    with pytest.raises(ValueError, match=message):
        get("attention")(**(a | changed))
