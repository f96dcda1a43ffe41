"""attention on a GPU against the reference: decode and prefill, over shuffled pages.

Pages that no sequence owns, and the places past a sequence's end, hold NaN.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from attention_cases import Case, arrays
from examples import first_quick

from ftd.kernels.attention_decode_triton import (
    MAX_SPLITS,
    attention_decode,
    decode_workspace,
    num_splits,
)
from ftd.kernels.attention_prefill_triton import attention_prefill, num_parts, spread
from ftd.kernels.attention_ref import attention as reference
from ftd.kernels.attention_spread import SPLIT_KEYS, Spread, prefill_blocks
from ftd.kernels.attention_token_triton import NewTokens
from ftd.kernels.attention_triton import attention
from ftd.kernels.qkv_post_triton import qkv_post

AssertClose = Callable[..., None]
# f16 products: of q and of softmax, each off by up to 2^-11.
HALF = 2e-3


DECODE = {
    "one key": Case(9, 3, 64, ((1, 1),)),
    "page and tile edges": Case(4, 2, 64, ((1, 31), (1, 32), (1, 33), (1, 127), (1, 128), (1, 129))),
    "many splits": Case(8, 2, 64, ((1, 700), (1, 5), (1, 129))),
    "padding": Case(4, 2, 64, ((1, 40), (0, 0), (1, 140))),
    "80 channels": Case(4, 2, 80, ((1, 200),), page_size=16),
    "96 channels": Case(4, 1, 96, ((1, 200),)),
    "128 channels": Case(8, 2, 128, ((1, 300),)),
    "256 channels": Case(4, 1, 256, ((1, 150),)),
    "odd channels and pages": Case(6, 2, 37, ((1, 71),), page_size=5),
    "no grouping": Case(2, 2, 64, ((1, 150),)),
    "more heads than a program": Case(19, 1, 16, ((1, 300),), page_size=16),
    "window": Case(4, 2, 64, ((1, 300), (1, 20)), window=50),
    "window of one": Case(2, 1, 64, ((1, 130),), window=1),
    "window over splits": Case(2, 1, 64, ((1, 700),), window=400, sinks=True),
    "sinks": Case(4, 2, 64, ((1, 300), (1, 3)), sinks=True),
    "f32 pages": Case(4, 2, 64, ((1, 300), (1, 3)), sinks=True, dtype="f4"),
}
PREFILL = {
    "page edges": Case(4, 2, 64, ((31, 31), (32, 32), (1, 33), (3, 17)), page_size=16),
    "over tiles": Case(6, 2, 64, ((150, 150),)),
    "chunk after a prefix": Case(3, 1, 64, ((37, 300),)),
    "beside decode and padding": Case(4, 2, 64, ((1, 200), (70, 70), (0, 40), (1, 5))),
    "80 channels": Case(4, 2, 80, ((33, 90),), page_size=16),
    "128 channels": Case(4, 1, 128, ((40, 150),)),
    "256 channels": Case(2, 1, 256, ((33, 90),)),
    "odd channels and pages": Case(6, 2, 37, ((9, 71),), page_size=5),
    "no grouping": Case(2, 2, 64, ((140, 140),)),
    "more heads than a program": Case(19, 1, 16, ((11, 40),), page_size=16),
    "window": Case(4, 2, 64, ((90, 300), (5, 20)), window=50),
    "window of one": Case(2, 1, 64, ((70, 70),), window=1),
    "sinks and window": Case(8, 1, 64, ((30, 160),), window=33, sinks=True),
    "f32 pages": Case(4, 2, 64, ((40, 100),), sinks=True, dtype="f4"),
    "few rows, long keys": Case(8, 2, 128, ((7, 900),)),
    "few rows of several": Case(4, 2, 64, ((3, 500), (1, 700), (0, 90), (20, 20), (2, 260)), sinks=True),
    "shares and a window": Case(8, 1, 64, ((9, 700), (1, 300)), window=400, sinks=True),
    "shares of a group over blocks": Case(19, 1, 16, ((5, 400),), page_size=16),
    "shares of 80 channels": Case(4, 1, 80, ((5, 400),), page_size=16),
    "shares of f32 pages": Case(4, 2, 64, ((5, 400),), dtype="f4"),
}


def on(device: str, a: dict[str, Any]) -> dict[str, Any]:
    """Return ``a`` with its arrays on ``device``."""
    return {
        name: torch.tensor(value, device=device) if isinstance(value, np.ndarray) else value
        for name, value in a.items()
    }


def close(actual: torch.Tensor, expected: Any, case: Case, assert_close: AssertClose) -> None:
    """Fail unless two results agree as well as the type of the pages allows."""
    got = actual.float().cpu().numpy().reshape(expected.shape)
    if case.dtype == "f4":
        assert_close(got, expected, "softmax")
    else:
        assert np.isfinite(got).all()
        assert np.abs(got - expected).max() <= HALF * np.abs(expected).max()


def decode(case: Case, a: dict[str, Any], **more: Any) -> torch.Tensor:
    """Return attention_decode of ``a``, one row a sequence."""
    parts = ("k_pages", "v_pages", "page_table", "kv_len")
    rest = (case.heads, a["scale"], a["window"], a["sinks"])
    return attention_decode(a["q"].flatten(1), *(a[part] for part in parts), *rest, **more)


@pytest.mark.parametrize("case", DECODE.values(), ids=DECODE)
def test_decode_equals_the_reference(
    case: Case, rng: np.random.Generator, assert_close: AssertClose, device: str
) -> None:
    host = arrays(case, rng)
    expected = reference(**host)
    a = on(device, host)
    rows = torch.zeros((len(case.sequences), case.heads * case.channels), device=device)
    has_row = [tokens > 0 for tokens, _ in case.sequences]
    rows[has_row] = a["q"].flatten(1)
    actual = decode(case, a | {"q": rows.unflatten(1, (case.heads, case.channels))})
    close(actual[has_row], expected, case, assert_close)
    assert (actual[[not each for each in has_row]] == 0).all()


def test_decode_of_bf16_columns_with_one_workspace_for_lengths_that_change(
    rng: np.random.Generator, assert_close: AssertClose, device: str
) -> None:
    case = Case(4, 1, 64, ((1, 500), (1, 300)))
    host = arrays(case, rng)
    a = on(device, host)
    wide = torch.zeros((2, 600), dtype=torch.bfloat16, device=device)
    q, out = wide[:, 8:264], torch.zeros((2, 400), device=device)
    q.copy_(a["q"].flatten(1))
    host["q"] = q.float().cpu().numpy().reshape(host["q"].shape)
    workspace = decode_workspace(4, 4, 1, 64, 1024, device)
    for lengths in ([500, 300], [1, 300], [257, 2]):
        host |= {"kv_len": np.array(lengths, np.int32), "positions": np.array(lengths, np.int32) - 1}
        a["kv_len"] = torch.tensor(lengths, dtype=torch.int32, device=device)
        decode(
            case,
            a | {"q": q.unflatten(1, (4, 64))},
            out=out[:, 16:272],
            workspace=workspace,
        )
        close(out[:, 16:272], reference(**host), case, assert_close)
        assert (workspace.counts == 0).all()


NEW = {
    "one key": Case(4, 2, 64, ((1, 1),)),
    "splits and padding": Case(8, 1, 128, ((1, 300), (0, 0), (1, 129), (1, 64))),
    "window": Case(2, 1, 64, ((1, 300),), window=200, sinks=True),
    "more heads than a program, f32": Case(19, 1, 64, ((1, 140), (1, 33)), page_size=16, dtype="f4"),
    "256 channels": Case(2, 1, 256, ((1, 150),)),
}


@pytest.mark.parametrize("case", NEW.values(), ids=NEW)
@pytest.mark.parametrize("norm", first_quick(True, False))
def test_decode_of_what_the_products_gave(
    case: Case, norm: bool, rng: np.random.Generator, assert_close: AssertClose, device: str
) -> None:
    """The same as qkv_post and then attention; keys and values of the step lie in their pages."""
    host = arrays(case, rng)
    a = on(device, host)
    count, size = len(case.sequences), case.page_size
    heads = (case.heads, case.groups, case.groups)
    wide = torch.from_numpy(rng.standard_normal((count, sum(heads) * case.channels + 8), np.float32))
    q, k, v = wide.to(device)[:, 8:].split([each * case.channels for each in heads], dim=1)
    last = np.maximum(host["kv_len"] - 1, 0)
    pages = host["page_table"][np.arange(count), last // size]
    index = np.where(host["kv_len"] > 0, pages * size + last % size, -1).astype(np.int32)
    weights = torch.from_numpy(rng.standard_normal((2, case.channels), np.float32)).to(device)
    new = NewTokens(
        k,
        v,
        torch.from_numpy(index).to(device),
        torch.from_numpy(last.astype(np.int32)).to(device),
        torch.from_numpy((1e4 ** -np.linspace(0, 1, case.channels // 2)).astype(np.float32)).to(device),
        1.1,
        *(weights if norm else (None, None)),
        1e-5,
    )
    stored = [a[name].clone() for name in ("k_pages", "v_pages")]
    rotated = q.clone()
    qkv_post(rotated, k, v, *stored, new.kv_index, new.positions, *new[4:6], *new[6:8], new.eps)
    parts = (a["page_table"], a["kv_len"], case.heads, a["scale"], a["window"], a["sinks"])
    expected = attention_decode(rotated, *stored, *parts)
    actual = attention_decode(q, a["k_pages"], a["v_pages"], *parts, new=new)
    for name, wanted in zip(("k_pages", "v_pages"), stored, strict=True):
        torch.testing.assert_close(a[name], wanted, rtol=1e-3, atol=1e-4, equal_nan=True)
    close(actual, expected.cpu().numpy(), case, assert_close)


def test_num_splits_is_a_power_of_two_within_bounds() -> None:
    for sequences in (1, 2, 3, 16):
        for max_keys in (1, 128, 129, 5000, 131072):
            splits = num_splits(sequences, 8, 4, max_keys)
            assert 1 <= splits <= MAX_SPLITS and splits & (splits - 1) == 0
    assert num_splits(1, 8, 4, 100) == 1
    assert num_splits(1, 8, 16, 1 << 20) == 16


@pytest.mark.parametrize("case", PREFILL.values(), ids=PREFILL)
def test_prefill_equals_the_reference(
    case: Case, rng: np.random.Generator, assert_close: AssertClose, device: str
) -> None:
    host = arrays(case, rng)
    close(attention(**on(device, host)), reference(**host), case, assert_close)


def test_attention_in_both_directions(
    rng: np.random.Generator, assert_close: AssertClose, device: str
) -> None:
    case = Case(4, 2, 64, ((70, 70), (0, 0), (3, 3)), sinks=True, dtype="f4")
    host = arrays(case, rng)
    both_ways = attention(**on(device, host), causal=False)
    close(both_ways, reference(**host, causal=False), case, assert_close)
    with pytest.raises(ValueError, match="in both directions has no window, got 3"):
        attention(**on(device, host | {"window": 3}), causal=False)


def test_prefill_leaves_other_sequences_rows(
    rng: np.random.Generator, assert_close: AssertClose, device: str
) -> None:
    case = Case(4, 2, 64, ((1, 30), (20, 60)))
    host = arrays(case, rng)
    a = on(device, host)
    blocks = prefill_blocks(host["q_start"], host["kv_len"], spread(a["k_pages"], 4), first_sequence=1)
    out = torch.full((21, 300), 5.0, dtype=torch.bfloat16, device=device)
    attention_prefill(
        a["q"].flatten(1),
        *(a[part] for part in ("k_pages", "v_pages", "page_table", "q_start", "positions")),
        torch.from_numpy(blocks).to(device),
        4,
        a["scale"],
        out=out[:, 20:276],
    )
    expected = reference(**host)[1:]
    got = out[1:, 20:276].float().cpu().numpy().reshape(expected.shape)
    np.testing.assert_allclose(got, expected, rtol=2**-7, atol=HALF)
    assert (out[0] == 5).all() and (out[:, :20] == 5).all() and (out[:, 276:] == 5).all()


def test_padded_blocks_are_none_and_one_list_serves_kernels_that_share_and_not(
    rng: np.random.Generator, assert_close: AssertClose, device: str
) -> None:
    case = Case(4, 2, 64, ((6, 600), (3, 9)))
    host = arrays(case, rng)
    a = on(device, host)
    how = spread(a["k_pages"], 4)
    blocks = prefill_blocks(host["q_start"], host["kv_len"], how)
    assert blocks[:, 3].tolist() == [5] * 5 + [1]
    padded = np.full((how.most(9, 2) + 3, 4), -1, np.int32)
    padded[: len(blocks)] = blocks
    out = torch.full((9, 256), 5.0, device=device)
    parts = torch.full((num_parts(a["k_pages"], 4),), torch.nan, device=device)
    attention_prefill(
        a["q"].flatten(1),
        *(a[part] for part in ("k_pages", "v_pages", "page_table", "q_start", "positions")),
        torch.from_numpy(padded).to(device),
        4,
        a["scale"],
        out=out,
        parts=parts,
    )
    close(out, reference(**host), case, assert_close)


def test_prefill_blocks_cover_each_row_once_longest_first() -> None:
    q_start, kv_len = np.array([0, 1, 1, 40, 75], np.int32), np.array([1, 1, 39, 35], np.int32)
    blocks = prefill_blocks(q_start, kv_len, Spread(16), first_sequence=1)
    assert blocks[:, :2].tolist() == [[2, 33], [3, 72], [2, 17], [3, 56], [2, 1], [3, 40]]
    assert blocks[:, 2:].tolist() == [[0, 1]] * 6
    assert prefill_blocks(np.array([0, 1], np.int32), kv_len[:1], Spread(16), 1).shape == (0, 4)


def test_few_blocks_share_out_their_keys() -> None:
    """As many programs as are wanted at most, each of about as many keys; a window leaves few to share."""
    q_start, kv_len = np.array([0, 30, 31], np.int32), np.array([8222, 4100], np.int32)
    for programs in (1, 3, 4, 7, 33, 1000):
        blocks = prefill_blocks(q_start, kv_len, Spread(16, programs))
        assert 3 <= len(blocks) <= max(3, programs)
        assert len(blocks) <= Spread(16, programs).most(31, 2)
        for row in blocks:
            sequence, first, share, count = row.tolist()
            same = blocks[(blocks[:, 0] == sequence) & (blocks[:, 1] == first)]
            assert same[:, 2].tolist() == list(range(count)) and 0 <= share < count
            assert count <= -(-8222 // SPLIT_KEYS)
    windowed = prefill_blocks(q_start, kv_len, Spread(16, 1000, 256))
    assert windowed[:, 3].max() == 1
    for tokens, keys, programs, counts in (
        (30, 8222, 32, {16}),  # one block sees fewer keys, which is as many programs
        (128, 8192, 32, {4}),
        (256, 8192, 32, {2}),
        (256, 256, 32, {1}),  # too little to gain
        (512, 8192, 32, {1}),  # as many blocks as programs
        (400, 8192, 32, {1}),  # the longest block would stay whole
        (30, 1024, 32, {8}),
    ):
        blocks = prefill_blocks(
            np.array([0, tokens], np.int32), np.array([keys], np.int32), Spread(16, programs)
        )
        assert set(blocks[:, 3].tolist()) == counts


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"q": torch.zeros(1, 3, 8)}, "q must be"),
        ({"scale": 0.0}, "scale must be above 0"),
        ({"window": -1}, "window must be at least 0"),
        ({"sinks": torch.zeros(3)}, "sinks must be"),
        ({"kv_len": torch.zeros(2, dtype=torch.int32)}, "kv_len must be"),
        (
            {"k_pages": torch.zeros(1, 3, 8, 4), "v_pages": torch.zeros(1, 3, 4, 8)},
            "multiple of key-value heads",
        ),
        (
            {"k_pages": torch.zeros(1, 1, 264, 4), "v_pages": torch.zeros(1, 1, 4, 264)},
            "at most 256 channels",
        ),
    ],
)
def test_refuses(change: dict[str, Any], match: str) -> None:
    a = {
        "q": torch.zeros(1, 2, 8),
        "k_pages": torch.zeros(1, 1, 8, 4),
        "v_pages": torch.zeros(1, 1, 4, 8),
        "page_table": torch.zeros((1, 1), dtype=torch.int32),
        "kv_len": torch.zeros(1, dtype=torch.int32),
        "scale": 1.0,
        "window": 0,
        "sinks": None,
    }
    with pytest.raises(ValueError, match=match):
        decode(Case(2, 1, 8, ()), a | change)
