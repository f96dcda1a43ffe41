"""How a step's prompts are shared out: each key of each row once, no more programs than wanted or needed."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ftd.kernels.attention_spread import LEAST_GAIN, SPLIT_KEYS, Spread, prefill_blocks

Ints = NDArray[np.int32]


@st.composite
def steps(draw: st.DrawFn) -> tuple[Ints, Ints]:
    """First rows and keys of sequences, some with a cached beginning, some without a row."""
    rows = draw(st.lists(st.integers(0, 70), min_size=1, max_size=5))
    cached = draw(st.lists(st.integers(0, 5000), min_size=len(rows), max_size=len(rows)))
    q_start = np.concatenate(([0], np.cumsum(rows))).astype(np.int32)
    return q_start, np.array([n + more for n, more in zip(rows, cached, strict=True)], np.int32)


spreads = st.builds(Spread, st.sampled_from((1, 16, 64)), st.integers(1, 40), st.sampled_from((0, 100, 4096)))


@given(steps(), spreads, st.integers(0, 3))
def test_each_block_has_all_its_shares_together(step: tuple[Ints, Ints], spread: Spread, first: int) -> None:
    q_start, kv_len = step
    blocks = prefill_blocks(q_start, kv_len, spread, first).tolist()
    wanted = [
        (sequence, row)
        for sequence in range(first, len(kv_len))
        for row in range(q_start[sequence], q_start[sequence + 1], spread.tokens)
    ]
    found = [(sequence, row) for sequence, row, share, _ in blocks if share == 0]
    assert sorted(found) == sorted(wanted), "each block once"
    position = 0
    while position < len(blocks):
        sequence, row, _, count = blocks[position]
        assert blocks[position : position + count] == [[sequence, row, i, count] for i in range(count)]
        position += count
    assert len(blocks) <= spread.most(int(q_start[-1]), len(kv_len))


def keys_of(step: tuple[Ints, Ints], spread: Spread, sequence: int, row: int) -> int:
    """Count the keys that a block's rows see, one by one."""
    q_start, kv_len = step
    rows = range(row, min(row + spread.tokens, int(q_start[sequence + 1])))
    last = [int(kv_len[sequence]) - (int(q_start[sequence + 1]) - 1 - each) for each in rows]
    first = [max(0, end - spread.window) if spread.window else 0 for end in last]
    return max(last) - min(first)


@given(steps(), spreads)
def test_longest_first_and_shares_alike(step: tuple[Ints, Ints], spread: Spread) -> None:
    """By counting keys. A block's last rows may be none: then it counts up to where they would be."""
    blocks = prefill_blocks(*step, spread).tolist()
    counts = [(keys_of(step, spread, sequence, row), n) for sequence, row, share, n in blocks if share == 0]
    slack = spread.tokens - 1 if spread.window else 0
    assert all(first >= second - slack for (first, _), (second, _) in itertools.pairwise(counts))
    if len(counts) >= spread.programs or not counts:
        assert all(n == 1 for _, n in counts), "enough programs without sharing"
        return
    longest = max(keys for keys, _ in counts) + slack
    parts = max(-(-keys // n) for keys, n in counts)
    assert len(blocks) <= spread.programs
    if any(n > 1 for _, n in counts):
        assert longest - parts >= LEAST_GAIN - 2 * slack, "what is shared must gain by it"


@pytest.mark.parametrize("programs", range(1, 40))
def test_no_other_share_would_make_the_longest_program_shorter(programs: int) -> None:
    """Against trying all lengths of a share."""
    kv_len = np.array([3000, 700, 64], np.int32)
    q_start = np.array([0, 20, 36, 40], np.int32)
    blocks = prefill_blocks(q_start, kv_len, Spread(16, programs)).tolist()
    keys = [3000, 2996, 700, 64]  # of 20 rows the first 16 do not see the last 4
    shares = [n for _, _, share, n in blocks if share == 0]
    if programs <= 4:
        assert shares == [1, 1, 1, 1]
        return
    best = next(n for n in range(SPLIT_KEYS, 3001) if sum(-(-each // n) for each in keys) <= programs)
    wanted = best if 3000 - best >= LEAST_GAIN else 3000
    assert shares == [-(-each // wanted) for each in sorted(keys, reverse=True)]


def test_a_step_without_prompts_has_no_blocks() -> None:
    none = prefill_blocks(np.array([0, 1, 2], np.int32), np.array([5, 6], np.int32), Spread(16), 2)
    assert none.shape == (0, 4) and none.dtype == np.int32
    assert prefill_blocks(np.array([0], np.int32), np.array([], np.int32), Spread(16, 9)).shape == (0, 4)
