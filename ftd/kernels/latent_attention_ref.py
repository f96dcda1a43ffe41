"""latent_attention: the definition of causal attention with one compressed row a token as key and value."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels.latent_store_ref import check_pages
from ftd.kernels.shapes import ArrayLike, expect, expect_range


def check(
    q: ArrayLike,
    pages: ArrayLike,
    page_table: NDArray[np.int32],
    q_start: NDArray[np.int32],
    kv_len: NDArray[np.int32],
    positions: NDArray[np.int32],
    latent: int,
    selected: ArrayLike | None = None,
) -> None:
    """Raise ValueError unless the arguments fit the contract of ``latent_attention``."""
    expect("q", q, "float32", ("T", "H", "C"))
    tokens, _, channels = q.shape
    check_pages(pages, channels)
    expect_range("latent", latent, latent, 1, channels)
    if selected is not None:
        expect("selected", selected, "uint64", (tokens, "W"))
        keys = page_table.shape[-1] * pages.shape[1]
        if 64 * selected.shape[1] < keys:
            raise ValueError(
                f"selected must have a bit for each of {keys} keys, got {64 * selected.shape[1]}"
            )
    expect("page_table", page_table, "int32", ("B", "max_pages"))
    sequences, max_pages = page_table.shape
    expect("q_start", q_start, "int32", (sequences + 1,))
    expect("kv_len", kv_len, "int32", (sequences,))
    expect("positions", positions, "int32", (tokens,))
    if q_start[0] != 0 or q_start[-1] != tokens or (np.diff(q_start) < 0).any():
        raise ValueError(f"q_start must rise from 0 to {tokens}, got {q_start.tolist()}")
    for b in range(sequences):
        expect_range("kv_len", int(kv_len[b]), int(kv_len[b]), 0, max_pages * pages.shape[1])
        used = page_table[b, : -(-int(kv_len[b]) // pages.shape[1])]
        if used.size:
            expect_range("page_table", int(used.min()), int(used.max()), 0, pages.shape[0] - 1)
        own = positions[q_start[b] : q_start[b + 1]]
        if own.size:
            expect_range("positions", int(own.min()), int(own.max()), 0, int(kv_len[b]) - 1)


def latent_attention(
    q: NDArray[np.float32],
    pages: NDArray[np.floating],
    page_table: NDArray[np.int32],
    q_start: NDArray[np.int32],
    kv_len: NDArray[np.int32],
    positions: NDArray[np.int32],
    latent: int,
    scale: float,
    selected: NDArray[np.uint64] | None = None,
    pool: object = None,
) -> NDArray[np.float32]:
    """Attend from each head to the one row that each token of its sequence keeps, up to its own position.

    q           [T, H, C]         f32          queries, in the space of latents and then of the shared key
    pages       [P, page_size, C] f16 or f32   a whole row is a key, its first ``latent`` channels the value
    page_table  [B, max_pages]    i32          pages of each sequence in order; past kv_len not read
    q_start     [B + 1]           i32          first query of each sequence, q_start[B] = T
    kv_len      [B]               i32          keys of each sequence, this step's included
    positions   [T]               i32          0 <= position < kv_len; the key at index j has position j
    scale                                      factor on q.k before the softmax
    selected    [T, W]            u64          bit j of word w: key 64 * w + j takes part; None: all do
    returns     [T, H, latent]    f32          softmax(scale * q.k) v over j <= position

    Bytes moved: at least 4*T*H*(C + latent) + sum(kv_len) * C * item size.
    Raises ValueError if a shape or dtype differs, or an index, position or length lies out of range.
    """
    check(q, pages, page_table, q_start, kv_len, positions, latent, selected)
    out = np.zeros((*q.shape[:2], latent), np.float32)
    for b in range(len(kv_len)):
        own = page_table[b, : -(-int(kv_len[b]) // pages.shape[1])]
        rows = slice(int(q_start[b]), int(q_start[b + 1]))
        if rows.start == rows.stop:
            continue
        keys = pages[own].reshape(-1, q.shape[2])[: kv_len[b]].astype(np.float64)
        score = np.einsum("thc,sc->ths", q[rows].astype(np.float64), keys) * scale
        hidden = positions[rows, None] < np.arange(kv_len[b])
        if selected is not None:
            bits = np.unpackbits(selected[rows].view(np.uint8), axis=1, bitorder="little")
            hidden |= bits[:, : kv_len[b]] == 0
        score[np.broadcast_to(hidden[:, None], score.shape)] = -np.inf
        weight = np.exp(score - score.max(axis=2, keepdims=True))
        out[rows] = weight @ keys[:, :latent] / weight.sum(axis=2, keepdims=True)
    return out
