"""index_select: the definition of which keys a token sees in sparse attention (DeepSeek V3.2, GLM 5).

An indexer with heads and keys of its own scores every key that a token may see; the best are selected. A
selection is bits, one word of 64 for each tile of keys, so that attention can look at a tile at a time.
"""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels import latent_attention_ref
from ftd.kernels.shapes import ArrayLike, expect, expect_range

WORD = 64


def check(
    q: ArrayLike,
    weights: ArrayLike,
    pages: ArrayLike,
    page_table: NDArray[np.int32],
    q_start: NDArray[np.int32],
    kv_len: NDArray[np.int32],
    positions: NDArray[np.int32],
    count: int,
) -> None:
    """Raise ValueError unless the arguments fit the contract of ``index_select``."""
    latent_attention_ref.check(q, pages, page_table, q_start, kv_len, positions, 1)
    expect("weights", weights, "float32", q.shape[:2])
    expect_range("count", count, count, 1, 1 << 30)


def index_select(
    q: NDArray[np.float32],
    weights: NDArray[np.float32],
    pages: NDArray[np.floating],
    page_table: NDArray[np.int32],
    q_start: NDArray[np.int32],
    kv_len: NDArray[np.int32],
    positions: NDArray[np.int32],
    count: int,
    pool: object = None,
) -> NDArray[np.uint64]:
    """Select the ``count`` best keys of each token among those at its position and before.

    q           [T, H, C]         f32          queries of the indexer
    weights     [T, H]            f32          what each head counts for
    pages       [P, page_size, C] f16 or f32   keys of the indexer, one for all heads
    page_table, q_start, kv_len, positions     as in latent_attention
    returns     [T, W]            u64          bit j of word w: key 64 * w + j is selected; W = the pages of
                                               page_table in words, rounded up

    A key's score is the sum over heads of weight * max(0, q.k). All are selected where there are no more than
    ``count``; of equal scores the first ones. A NaN ranks last.

    Bytes moved: at least sum(kv_len) * C * item size, 4*T*H*C.
    Raises ValueError if a shape or dtype differs, or an index, position, length or count is out of range.
    """
    check(q, weights, pages, page_table, q_start, kv_len, positions, count)
    words = -(-page_table.shape[1] * pages.shape[1] // WORD)
    bits = np.zeros((len(q), words * WORD), bool)
    for b in range(len(kv_len)):
        own = page_table[b, : -(-int(kv_len[b]) // pages.shape[1])]
        keys = pages[own].reshape(-1, q.shape[2]).astype(np.float64)
        for token in range(int(q_start[b]), int(q_start[b + 1])):
            seen = int(positions[token]) + 1
            if seen <= count:
                bits[token, :seen] = True
                continue
            heads = np.maximum(q[token].astype(np.float64) @ keys[:seen].T, 0.0)
            scores = (weights[token].astype(np.float64) @ heads).astype(np.float32)
            ranked = np.where(np.isnan(scores), -np.inf, scores)
            bits[token, np.argsort(-ranked, kind="stable")[:count]] = True
    return np.packbits(bits, axis=1, bitorder="little").view(np.uint64)
