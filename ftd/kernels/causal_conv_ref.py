"""causal_conv: the definition."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels.sequences import check_sequences, sequences_of
from ftd.kernels.shapes import ArrayLike, expect, expect_range

MAX_TAPS = 16

Ints = NDArray[np.int32]


def check_weights(width: int, weight: ArrayLike, state: ArrayLike) -> None:
    """Raise ValueError unless ``weight`` and ``state`` fit rows of ``width`` channels."""
    expect("weight", weight, "float32", (width, "K"))
    expect_range("taps", weight.shape[1], weight.shape[1], 2, MAX_TAPS)
    expect("state", state, "float32", ("slots", weight.shape[1] - 1, width))


def causal_conv(
    x: NDArray[np.float32],
    weight: NDArray[np.float32],
    state: NDArray[np.float32],
    q_start: Ints,
    positions: Ints,
    state_index: Ints,
    pool: object = None,
) -> NDArray[np.float32]:
    """Convolve each channel with its last K inputs, then silu; keep the last K - 1 inputs for the next step.

    x            [T, C] f32
    weight       [C, K] f32          the last tap meets the token itself; 2 <= K <= 16
    state        [slots, K-1, C] f32 inputs before the step's, oldest first; written in place
    q_start      [B + 1] i32         first token of each sequence; positions [T] i32; state_index [B] i32
    returns      [T, C] f32          silu(sum over j of weight[:, j] * input[t - K + 1 + j])

    A sequence whose first position is 0 starts from zeros, whatever its slot holds. A result does not depend
    on where steps end.

    Bytes moved: 8*T*C + 8*B*(K-1)*C.
    Raises ValueError if a shape or dtype differs, or an index lies out of range.
    """
    expect("x", x, "float32", ("T", "C"))
    check_weights(x.shape[1], weight, state)
    check_sequences(q_start, positions, state_index, x.shape[0], state.shape[0])
    out = np.empty_like(x)
    kept = weight.shape[1] - 1
    for tokens, slot, is_new in sequences_of(q_start, positions, state_index):
        if is_new:
            state[slot] = 0.0
        inputs = np.concatenate([state[slot], x[tokens]]).astype(np.float64)
        windows = np.lib.stride_tricks.sliding_window_view(inputs, kept + 1, axis=0)
        total = (windows * weight).sum(axis=2)
        decay = np.exp(-np.abs(total))
        out[tokens] = total * np.where(total >= 0.0, 1.0, decay) / (1.0 + decay)
        state[slot] = inputs[-kept:]
    return out
