"""attention: the definition of attention over paged KV with grouped query heads, causal or both ways."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels.kv_store_ref import check_pages
from ftd.kernels.shapes import ArrayLike, expect, expect_range


def check(
    q: ArrayLike,
    k_pages: ArrayLike,
    v_pages: ArrayLike,
    page_table: NDArray[np.int32],
    q_start: NDArray[np.int32],
    kv_len: NDArray[np.int32],
    positions: NDArray[np.int32],
    window: int,
    sinks: ArrayLike | None,
    causal: bool = True,
) -> None:
    """Raise ValueError unless the arguments fit the contract of ``attention``."""
    expect("q", q, "float32", ("T", "H", "C"))
    tokens, heads, channels = q.shape
    check_pages(k_pages, v_pages, "G", channels)
    pages, groups, _, page_size = k_pages.shape
    if heads % groups:
        raise ValueError(f"query heads must be a multiple of key-value heads, got {heads} and {groups}")
    expect("page_table", page_table, "int32", ("B", "max_pages"))
    sequences, max_pages = page_table.shape
    expect("q_start", q_start, "int32", (sequences + 1,))
    expect("kv_len", kv_len, "int32", (sequences,))
    expect("positions", positions, "int32", (tokens,))
    if sinks is not None:
        expect("sinks", sinks, "float32", (heads,))
    if window < 0:
        raise ValueError(f"window must be at least 0, got {window}")
    if window and not causal:
        raise ValueError(f"attention in both directions has no window, got {window}")
    if q_start[0] != 0 or q_start[-1] != tokens or (np.diff(q_start) < 0).any():
        raise ValueError(f"q_start must rise from 0 to {tokens}, got {q_start.tolist()}")
    for b in range(sequences):
        expect_range("kv_len", int(kv_len[b]), int(kv_len[b]), 0, max_pages * page_size)
        used = page_table[b, : -(-int(kv_len[b]) // page_size)]
        if used.size:
            expect_range("page_table", int(used.min()), int(used.max()), 0, pages - 1)
        own = positions[q_start[b] : q_start[b + 1]]
        if own.size:
            expect_range("positions", int(own.min()), int(own.max()), 0, int(kv_len[b]) - 1)


def attention(
    q: NDArray[np.float32],
    k_pages: NDArray[np.floating],
    v_pages: NDArray[np.floating],
    page_table: NDArray[np.int32],
    q_start: NDArray[np.int32],
    kv_len: NDArray[np.int32],
    positions: NDArray[np.int32],
    scale: float,
    window: int = 0,
    sinks: NDArray[np.float32] | None = None,
    pool: object = None,
    causal: bool = True,
) -> NDArray[np.float32]:
    """Attend from each query to the keys of its sequence at its own position and before, or to all of them.

    q           [T, H, C]            f32   queries of all sequences, flat
    k_pages     [P, G, C, page_size] f16 or f32, head h reads key-value head h * G // H
    v_pages     [P, G, page_size, C] as k_pages
    page_table  [B, max_pages]       i32   pages of each sequence in order; entries past kv_len are not read
    q_start     [B + 1]              i32   first query of each sequence, q_start[B] = T
    kv_len      [B]                  i32   keys of each sequence, this step's included
    positions   [T]                  i32   0 <= position < kv_len; the key at index j has position j
    scale                            factor on q.k before the softmax
    window      keys seen at most, the query's own included; 0 sees all
    sinks       [H] f32              one more logit a head that takes part in the softmax and has no value
    causal      False: every query sees all kv_len keys of its sequence; without a window then
    returns     [T, H, C]            f32   softmax(scale * q.k) v over position - window < j <= position

    Bytes moved: at least 8*T*H*C + 2 * sum(kv_len) * G*C * item size.
    Raises ValueError if a shape or dtype differs, H % G, or an index, position or length lies out of range.
    """
    check(q, k_pages, v_pages, page_table, q_start, kv_len, positions, window, sinks, causal)
    heads, groups, page_size = q.shape[1], k_pages.shape[1], k_pages.shape[3]
    out = np.zeros(q.shape, np.float32)
    for b in range(len(kv_len)):
        pages = page_table[b, : -(-int(kv_len[b]) // page_size)]
        rows = slice(int(q_start[b]), int(q_start[b + 1]))
        # both to [G, kv_len, C]
        keys, values = (
            side.reshape(groups, -1, q.shape[2])[:, : kv_len[b]].astype(np.float64)
            for side in (k_pages[pages].transpose(1, 0, 3, 2), v_pages[pages].transpose(1, 0, 2, 3))
        )
        behind = positions[rows, None] - np.arange(kv_len[b])
        hidden = ((behind < 0) & causal) | ((behind >= window) if window else False)
        for head in range(heads if rows.stop > rows.start else 0):
            group = head * groups // heads
            score = q[rows, head].astype(np.float64) @ keys[group].T * scale
            score[hidden] = -np.inf
            top = score.max(axis=1, keepdims=True)
            if sinks is not None:
                top = np.maximum(top, sinks[head])
            weight = np.exp(score - top)
            total = weight.sum(axis=1, keepdims=True)
            if sinks is not None:
                total += np.exp(np.float64(sinks[head]) - top)
            out[rows, head] = weight @ values[group] / total
    return out
