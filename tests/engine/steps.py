"""The arrays of one step, as models take them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def arrays(
    parts: list[tuple[int, list[int], int]], table: NDArray[np.int32], page_size: int
) -> tuple[NDArray[Any], ...]:
    """Return ids, positions, places of keys, starts, lengths and ``table`` of a step.

    parts  (whatever, new ids, tokens before) of each sequence
    table  [B, pages] i32, a row a sequence
    """
    counts = [len(ids) for _, ids, _ in parts]
    positions = np.concatenate([start + np.arange(len(ids)) for _, ids, start in parts]).astype(np.int32)
    owner = np.repeat(np.arange(len(parts)), counts)
    return (
        np.concatenate([ids for _, ids, _ in parts]).astype(np.int32),
        positions,
        table[owner, positions // page_size] * np.int32(page_size) + positions % np.int32(page_size),
        np.cumsum([0, *counts]).astype(np.int32),
        np.array([start + len(ids) for _, ids, start in parts], np.int32),
        table,
    )
