"""gated_delta: the definition (Gated DeltaNet, arXiv 2412.06464, as Qwen3-Next and Qwen3.5 use it)."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels.sequences import check_sequences, sequences_of
from ftd.kernels.shapes import ArrayLike, expect

NORM_EPS = 1e-6

Ints = NDArray[np.int32]
Wide = NDArray[np.float64]


def check_weights(
    width: int, key_heads: int, decay: ArrayLike, bias: ArrayLike, state: ArrayLike
) -> tuple[int, int, int]:
    """Return value heads, key channels and value channels; raise ValueError unless rows of ``width`` fit."""
    expect("state", state, "float32", ("slots", "Hv", "Ck", "Cv"))
    _, value_heads, key_channels, value_channels = state.shape
    expect("decay", decay, "float32", (value_heads,))
    expect("bias", bias, "float32", (value_heads,))
    if key_heads < 1 or value_heads < 1 or value_heads % key_heads:
        raise ValueError(f"value heads must be a multiple of key heads, got {value_heads} and {key_heads}")
    needed = 2 * key_heads * key_channels + value_heads * value_channels
    if width != needed or min(key_channels, value_channels) < 1:
        raise ValueError(
            f"qkv must have {needed} channels: {key_heads} key heads of {key_channels} twice, "
            f"{value_heads} value heads of {value_channels}, got {width}"
        )
    return value_heads, key_channels, value_channels


def gated_delta(
    qkv: NDArray[np.float32],
    a: NDArray[np.float32],
    b: NDArray[np.float32],
    decay: NDArray[np.float32],
    bias: NDArray[np.float32],
    state: NDArray[np.float32],
    key_heads: int,
    q_start: Ints,
    positions: Ints,
    state_index: Ints,
    tiled: bool = False,
    pool: object = None,
) -> NDArray[np.float32]:
    """Read and correct one matrix of state for each value head, token by token.

    qkv          [T, 2*Hk*Ck + Hv*Cv] f32  query heads, key heads, value heads
    a, b         [T, Hv] f32               how much is forgotten, how much is corrected
    decay, bias  [Hv] f32                  decay is below 0 (-exp(A_log) of the checkpoint)
    state        [slots, Hv, Ck, Cv] f32   S below; written in place
    q_start      [B + 1] i32               first token of each sequence; positions [T], state_index [B] i32
    returns      [T, Hv*Cv] f32

    Value head h meets key head h // (Hv / Hk), or h % Hk if tiled. For each token, with q and k the key
    head's query / |query| / sqrt(Ck) and key / |key| (|x|^2 is the sum of squares + 1e-6), and v the value:

        S = exp(decay * softplus(a + bias)) * S
        S = S + k (sigmoid(b) * (v - S^T k))^T
        out = S^T q

    A sequence whose first position is 0 starts from zeros, whatever its slot holds. A result does not depend
    on where steps end.

    Bytes moved: 4*T*(2*Hk*Ck + 2*Hv*Cv) + 8*B*Hv*Ck*Cv; operations 7*T*Hv*Ck*Cv.
    Raises ValueError if a shape or dtype differs, or an index lies out of range.
    """
    expect("qkv", qkv, "float32", ("T", "channels"))
    num_tokens, width = qkv.shape
    value_heads, key_channels, value_channels = check_weights(width, key_heads, decay, bias, state)
    expect("a", a, "float32", (num_tokens, value_heads))
    expect("b", b, "float32", (num_tokens, value_heads))
    check_sequences(q_start, positions, state_index, num_tokens, state.shape[0])
    q, k, v = np.split(
        qkv.astype(np.float64), (key_heads * key_channels, 2 * key_heads * key_channels), axis=1
    )
    q = _unit(q, key_heads, value_heads, tiled) / np.sqrt(key_channels)
    k = _unit(k, key_heads, value_heads, tiled)
    v = v.reshape(num_tokens, value_heads, value_channels)
    kept = np.exp(decay * np.logaddexp(0.0, a.astype(np.float64) + bias))
    rate = 1.0 / (1.0 + np.exp(-b.astype(np.float64)))
    out = np.empty((num_tokens, value_heads * value_channels), np.float32)
    for tokens, slot, is_new in sequences_of(q_start, positions, state_index):
        matrix = np.zeros(state.shape[1:]) if is_new else state[slot].astype(np.float64)
        for t in range(tokens.start, tokens.stop):
            matrix *= kept[t, :, None, None]
            known = np.einsum("hkv,hk->hv", matrix, k[t])
            matrix += k[t][:, :, None] * (rate[t, :, None] * (v[t] - known))[:, None, :]
            out[t] = np.einsum("hkv,hk->hv", matrix, q[t]).reshape(-1)
        state[slot] = matrix
    return out


def _unit(x: Wide, key_heads: int, value_heads: int, tiled: bool) -> Wide:
    """Return the heads of ``x`` [T, Hk * Ck] at unit length, one for each value head: [T, Hv, Ck]."""
    heads = x.reshape(len(x), key_heads, x.shape[1] // key_heads)
    unit: Wide = heads / np.sqrt(np.square(heads).sum(axis=2, keepdims=True) + NORM_EPS)
    shared = value_heads // key_heads
    return np.tile(unit, (1, shared, 1)) if tiled else np.repeat(unit, shared, axis=1)
