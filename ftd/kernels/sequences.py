"""Which tokens of a step belong to which sequence, and where the sequence's recurrent state lies."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ftd.kernels.shapes import expect, expect_range

Ints = NDArray[np.int32]


def check_sequences(
    q_start: Ints, positions: Ints, state_index: Ints, num_tokens: int, num_states: int
) -> None:
    """Raise ValueError unless the arrays say of ``num_tokens`` tokens whose they are, one slot a sequence.

    q_start      [B + 1] i32   rises from 0 to num_tokens
    positions    [T] i32       of each token; 0 where a sequence starts from zeros
    state_index  [B] i32       distinct, below num_states
    """
    expect("q_start", q_start, "int32", ("B + 1",))
    sequences = len(q_start) - 1
    expect("positions", positions, "int32", (num_tokens,))
    expect("state_index", state_index, "int32", (sequences,))
    if sequences < 1 or q_start[0] != 0 or q_start[-1] != num_tokens or (np.diff(q_start) < 0).any():
        raise ValueError(f"q_start must rise from 0 to {num_tokens}, got {q_start.tolist()}")
    expect_range("state_index", int(state_index.min()), int(state_index.max()), 0, num_states - 1)
    if len(np.unique(state_index)) != sequences:
        raise ValueError(f"state_index must name each slot once, got {state_index.tolist()}")


def sequences_of(q_start: Ints, positions: Ints, state_index: Ints) -> Iterator[tuple[slice, int, bool]]:
    """Yield the tokens, the slot and whether the state starts from zeros, of each sequence with tokens."""
    for b, slot in enumerate(state_index.tolist()):
        first, last = int(q_start[b]), int(q_start[b + 1])
        if first < last:
            yield slice(first, last), slot, int(positions[first]) == 0
