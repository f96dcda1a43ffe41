"""Batches that attention is tried on, their keys and values on shuffled pages.

Pages that no sequence owns, and the places past a sequence's end, hold NaN.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Case:
    """A batch: heads H over groups G of C channels; (new tokens, context) of each sequence."""

    heads: int
    groups: int
    channels: int
    sequences: tuple[tuple[int, int], ...]
    page_size: int = 32
    window: int = 0
    sinks: bool = False
    dtype: str = "f2"
    causal: bool = True


def arrays(case: Case, rng: np.random.Generator) -> dict[str, Any]:
    """Return the arguments of attention for ``case``."""
    size, longest = case.page_size, max(context for _, context in case.sequences)
    columns = -(-longest // size) + 1
    count = len(case.sequences) * columns + 2
    table = rng.permutation(count)[: len(case.sequences) * columns].reshape(-1, columns).astype(np.int32)
    keys = np.full((count, case.groups, case.channels, size), np.nan, case.dtype)
    values = np.full((count, case.groups, size, case.channels), np.nan, case.dtype)
    for row, (_, context) in zip(table, case.sequences, strict=True):
        page, offset = row[np.arange(context) // size], np.arange(context) % size
        keys[page, :, :, offset] = rng.standard_normal((context, case.groups, case.channels))
        values[page, :, offset] = rng.standard_normal((context, case.groups, case.channels))
    new = [tokens for tokens, _ in case.sequences]
    return {
        "q": rng.standard_normal((sum(new), case.heads, case.channels), np.float32) * 2,
        "k_pages": keys,
        "v_pages": values,
        "page_table": table,
        "q_start": np.cumsum([0, *new]).astype(np.int32),
        "kv_len": np.array([context for _, context in case.sequences], np.int32),
        "positions": np.concatenate([np.arange(c - t, c) for t, c in case.sequences]).astype(np.int32),
        "scale": 1.3 / np.sqrt(case.channels),
        "window": case.window,
        "sinks": rng.standard_normal(case.heads, np.float32) if case.sinks else None,
        **({} if case.causal else {"causal": False}),
    }
