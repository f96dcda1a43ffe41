"""The sequences of a step, worked out by hand."""

import numpy as np
import pytest

from ftd.kernels.sequences import check_sequences, sequences_of


def ints(*values: int) -> np.ndarray:  # type: ignore[type-arg]
    return np.array(values, np.int32)


def test_sequences_with_tokens_their_slots_and_which_are_new() -> None:
    found = list(sequences_of(ints(0, 3, 3, 4), ints(0, 1, 2, 7), ints(5, 1, 2)))
    assert found == [(slice(0, 3), 5, True), (slice(3, 4), 2, False)]


@pytest.mark.parametrize(
    ("q_start", "state_index", "message"),
    [
        (ints(0), ints(), "q_start"),
        (ints(1, 4), ints(0), "q_start must rise from 0 to 4"),
        (ints(0, 3), ints(0), "q_start"),
        (ints(0, 4, 2, 4), ints(0, 1, 2), "q_start"),
        (ints(0, 2, 4), ints(1, 1), "each slot once"),
        (ints(0, 2, 4), ints(0, 3), "0 to 2, got 3"),
        (ints(0, 2, 4), ints(0), "state_index"),
    ],
)
def test_refuses_what_cannot_be(q_start, state_index, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        check_sequences(q_start, ints(0, 1, 2, 3), state_index, 4, 3)
