"""The arrays of one step, the largest step that a graph accepts, and the check of a step."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ftd.kernels.shapes import expect, expect_range

Ints = NDArray[np.int32]


class Step(NamedTuple):
    """What changes from step to step: the arguments of a graph's ``run``, in its order.

    ids          [T] i32
    positions    [T] i32              of each token in its sequence
    kv_index     [T] i32              page * page_size + offset: where the token's K and V go
    q_start      [B + 1] i32          first token of each sequence, then T
    kv_len       [B] i32              length of each sequence after the step
    page_table   [B, max_pages] i32   pages of each sequence in order
    logit_rows   [num_logits] i32     tokens whose logits are wanted
    state_index  [B] i32              slot of each sequence's recurrent states, for models that have them
    """

    ids: Ints
    positions: Ints
    kv_index: Ints
    q_start: Ints
    kv_len: Ints
    page_table: Ints
    logit_rows: Ints
    state_index: Ints | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The largest step a graph accepts."""

    max_tokens: int
    max_sequences: int
    max_logits: int
    page_size: int
    max_pages_per_sequence: int

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


def check_step(step: Step, limits: Limits, num_ids: int, num_pages: int, num_states: int = 0) -> None:
    """Raise ValueError unless a step fits the limits and every index in it lies in range.

    num_ids     rows of the embedding
    num_pages   pages of the smallest KV array
    num_states  slots of the smallest array of recurrent states, 0 if no op reads one
    """
    tokens, sequences, logits = len(step.ids), len(step.kv_len), len(step.logit_rows)
    expect("ids", step.ids, "int32", ("T",))
    expect("positions", step.positions, "int32", (tokens,))
    expect("kv_index", step.kv_index, "int32", (tokens,))
    expect("q_start", step.q_start, "int32", (sequences + 1,))
    expect("kv_len", step.kv_len, "int32", (sequences,))
    expect("page_table", step.page_table, "int32", (sequences, "max_pages"))
    expect("logit_rows", step.logit_rows, "int32", ("num_logits",))
    expect_range("tokens of a step", tokens, tokens, 1, limits.max_tokens)
    expect_range("sequences of a step", sequences, sequences, 1, limits.max_sequences)
    expect_range("logits of a step", logits, logits, 0, limits.max_logits)
    columns = step.page_table.shape[1]
    expect_range("columns of page_table", columns, columns, 1, limits.max_pages_per_sequence)
    if step.q_start[0] != 0 or step.q_start[-1] != tokens or (np.diff(step.q_start) < 0).any():
        raise ValueError(f"q_start must rise from 0 to {tokens}, got {step.q_start.tolist()}")
    _expect_values("ids", step.ids, num_ids)
    _expect_values("logit_rows", step.logit_rows, tokens)
    _expect_values("kv_index", step.kv_index, num_pages * limits.page_size)
    _expect_values("kv_len", step.kv_len, columns * limits.page_size + 1)
    used = np.arange(columns) < -(-step.kv_len[:, None] // limits.page_size)
    _expect_values("page_table", step.page_table[used], num_pages)
    if num_states:
        _check_state_index(step.state_index, sequences, num_states)
    length = np.repeat(step.kv_len, np.diff(step.q_start))
    if (step.positions < 0).any() or (step.positions >= length).any():
        wrong = int(np.flatnonzero((step.positions < 0) | (step.positions >= length))[0])
        raise ValueError(
            f"position of token {wrong} must be below {length[wrong]}, got {step.positions[wrong]}"
        )


def _check_state_index(state_index: Ints | None, sequences: int, num_states: int) -> None:
    if state_index is None:
        raise ValueError("state_index must name a slot for each sequence, got None")
    expect("state_index", state_index, "int32", (sequences,))
    _expect_values("state_index", state_index, num_states)
    if len(np.unique(state_index)) != sequences:
        raise ValueError(f"state_index must name each slot once, got {state_index.tolist()}")


def _expect_values(name: str, values: Ints, count: int) -> None:
    """Raise ValueError unless all values lie in 0 .. count - 1."""
    if values.size:
        expect_range(name, int(values.min()), int(values.max()), 0, count - 1)
