"""index_select on a GPU: scores of some tokens at a time, then the place of the count-th best by its bytes.

    scores   program (keys, token)   heads as rows of a tile: weight * max(0, q.k), added up
    select   program (token)         four histograms find the value of the count-th best, byte by byte from
                                     the top; a last pass writes bits, of equal scores the first ones

Scores lie in a workspace of SEGMENT tokens; a step of more takes turns, a captured one never has more.
"""
# A NaN is told by comparing a value with itself.
# ruff: noqa: PLR0124
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl

from ftd.kernels import interpreter  # noqa: F401  loops up to computed bounds need it
from ftd.kernels.latent_store_ref import check_pages
from ftd.kernels.rms_norm_triton import FLOATS
from ftd.kernels.shapes import ceil_div, expect, expect_range, power_of_two

# Tokens whose scores lie in the workspace together: of 131,072 keys they are 32 MiB.
SEGMENT = 64
# Keys of a program that scores, and of one turn of a program that selects.
BLOCK_KEYS, BLOCK_SELECT = 64, 1024
WORD = 64
# One kernel for up to so many sequences: nobody waits for a compiler because another prompt came.
MIN_SEQUENCES = 16


@triton.jit
def keys_seen(q_start, kv_len, positions, token, B, SEQUENCES: tl.constexpr):
    """Return the sequence of ``token`` and how many keys it sees, 0 if it is padding."""
    every = tl.arange(0, SEQUENCES)
    ends = tl.load(q_start + 1 + every, mask=every < B, other=1 << 30)
    sequence = tl.sum((ends <= token).to(tl.int32), axis=0)
    length = tl.load(kv_len + sequence, mask=sequence < B, other=0)
    return sequence, tl.where(length > 0, tl.load(positions + token) + 1, 0)


@triton.jit(do_not_specialize=["first_token", "B"])
def _scores_kernel(
    # pointers
    q_ptr, weights_ptr, pages_ptr, table_ptr, q_start_ptr, kv_len_ptr, positions_ptr, scores_ptr,
    # sizes
    first_token, B, H, C, count,
    # strides
    q_stride, weights_stride, table_stride, scores_stride,
    # meta
    PAGE_SIZE: tl.constexpr, HEADS: tl.constexpr, CHANNELS: tl.constexpr, KEYS: tl.constexpr,
    SEQUENCES: tl.constexpr,
):  # fmt: skip
    """KEYS scores of one token."""
    token = first_token + tl.program_id(1)
    sequence, seen = keys_seen(q_start_ptr, kv_len_ptr, positions_ptr, token, B, SEQUENCES)
    key = tl.program_id(0) * KEYS + tl.arange(0, KEYS)
    # Few enough are all selected, whatever their scores
    if (seen <= count) | (tl.program_id(0) * KEYS >= seen):
        return
    channel, head = tl.arange(0, CHANNELS), tl.arange(0, HEADS)
    page = tl.load(
        table_ptr + sequence.to(tl.int64) * table_stride + key // PAGE_SIZE, mask=key < seen, other=0
    )
    at = pages_ptr + ((page.to(tl.int64) * PAGE_SIZE + key % PAGE_SIZE) * C)[:, None] + channel[None, :]
    k = tl.load(at, mask=(key < seen)[:, None] & (channel < C)[None, :], other=0.0)
    token = token.to(tl.int64)
    q_at = q_ptr + token * q_stride + head[:, None] * C + channel[None, :]
    q = tl.load(q_at, mask=(head < H)[:, None] & (channel < C)[None, :], other=0.0)
    weight = tl.load(weights_ptr + token * weights_stride + head, mask=head < H, other=0.0).to(tl.float32)
    products = tl.dot(q.to(k.dtype), tl.trans(k), input_precision="ieee")
    found = tl.where(products != products, products, tl.maximum(products, 0.0))  # a NaN stays one
    score = tl.sum(found * weight[:, None], axis=0)
    tl.store(scores_ptr + tl.program_id(1).to(tl.int64) * scores_stride + key, score, mask=key < seen)


@triton.jit
def ranks(scores_ptr, key, seen):
    """Return what sorts as scores do, as unsigned numbers in i64; a NaN is as low as minus infinity."""
    score = tl.load(scores_ptr + key, mask=key < seen, other=0.0)
    score = tl.where(score != score, float("-inf"), score)
    bits = tl.where(score == 0.0, 0.0, score).to(tl.int32, bitcast=True)
    bits = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return bits.to(tl.int64) + 0x80000000


@triton.jit(do_not_specialize=["first_token", "B"])
def _select_kernel(
    # pointers
    scores_ptr, q_start_ptr, kv_len_ptr, positions_ptr, selected_ptr,
    # sizes
    first_token, B, count,
    # strides
    scores_stride, selected_stride,
    # meta
    KEYS: tl.constexpr, SEQUENCES: tl.constexpr,
):  # fmt: skip
    """The bits of one token."""
    token = first_token + tl.program_id(0)
    _, seen = keys_seen(q_start_ptr, kv_len_ptr, positions_ptr, token, B, SEQUENCES)
    scores_ptr += tl.program_id(0).to(tl.int64) * scores_stride
    selected_ptr += token.to(tl.int64) * selected_stride
    byte = tl.arange(0, 256)
    # ---- the value of the count-th best: its bytes known so far, and how many are still to be found
    known = tl.zeros([1], tl.int64)
    wanted = tl.zeros([1], tl.int32) + count
    if seen > count:
        for turn in tl.static_range(4):
            tally = tl.zeros([256], tl.int32)
            for first in range(0, seen, KEYS):
                key = first + tl.arange(0, KEYS)
                rank = ranks(scores_ptr, key, seen)
                mine = (key < seen) & (rank >> (32 - 8 * turn) == known)
                digit = ((rank >> (24 - 8 * turn)) & 255).to(tl.int32)
                tally += tl.histogram(digit, 256, mask=mine)
            above = tl.sum(tally, axis=0) - tl.cumsum(tally, axis=0)
            found = (above < wanted) & (above + tally >= wanted)
            known = known * 256 + tl.sum(tl.where(found, byte, 0), axis=0)
            wanted -= tl.sum(tl.where(found, above, 0), axis=0)
    # ---- bits
    for first in range(0, seen, KEYS):
        key = first + tl.arange(0, KEYS)
        inside = key < seen
        chosen = inside
        if seen > count:
            rank = ranks(scores_ptr, key, seen)
            equal = inside & (rank == known)
            nth = tl.cumsum(equal.to(tl.int32), axis=0)
            chosen = inside & ((rank > known) | (equal & (nth <= wanted)))
            wanted -= tl.sum(equal.to(tl.int32), axis=0)
        bits = tl.reshape(chosen.to(tl.int64), (KEYS // 64, 64)) << tl.arange(0, 64).to(tl.int64)[None, :]
        word = first // 64 + tl.arange(0, KEYS // 64)
        tl.store(selected_ptr + word, tl.sum(bits, axis=1), mask=word < (seen + 63) // 64)


def words(max_keys: int) -> int:
    """Return the words of a selection among ``max_keys`` keys."""
    return -(-max_keys // WORD)


def index_select_into(
    q: torch.Tensor,
    weights: torch.Tensor,
    pages: torch.Tensor,
    page_table: torch.Tensor,
    q_start: torch.Tensor,
    kv_len: torch.Tensor,
    positions: torch.Tensor,
    count: int,
    *,
    out: torch.Tensor,
    scores: torch.Tensor,
) -> torch.Tensor:
    """Select the ``count`` best keys of each token; write the bits to ``out`` and return it.

    q        [T, H * C] f32 or bf16, weights [T, H] f32 or bf16, pages [P, page_size, C] f16 or f32
    page_table [B, max_pages], q_start [B + 1], kv_len [B], positions [T]   i32
    out      [T, W] i64          W words of max_pages * page_size keys; none behind a position is written
    scores   [SEGMENT, keys] f32 workspace, keys at least max_pages * page_size

    Safe under graph capture.
    Raises ValueError if a shape or type differs.
    """
    expect("pages", pages, "float16 float32", ("P", "page_size", "C"))
    channels, page_size = int(pages.shape[2]), int(pages.shape[1])
    check_pages(pages, channels)
    expect("weights", weights, FLOATS, ("T", "H"))
    tokens, heads = weights.shape
    expect("q", q, FLOATS, (tokens, heads * channels))
    sequences, max_pages = page_table.shape
    expect("q_start", q_start, "int32", (sequences + 1,))
    expect("kv_len", kv_len, "int32", (sequences,))
    expect("positions", positions, "int32", (tokens,))
    expect_range("count", count, count, 1, 1 << 30)
    max_keys = max_pages * page_size
    expect("out", out, "int64", (tokens, "W"))
    expect("scores", scores, "float32", ("rows", "keys"))
    if out.shape[1] < words(max_keys) or scores.shape[0] < min(SEGMENT, tokens) or scores.shape[1] < max_keys:
        raise ValueError(
            f"out and scores must hold {max_keys} keys, got {list(out.shape)}, {list(scores.shape)}"
        )
    padded = max(MIN_SEQUENCES, power_of_two(sequences))
    for first in range(0, tokens, SEGMENT):
        rows = min(SEGMENT, tokens - first)
        _scores_kernel[(ceil_div(max_keys, BLOCK_KEYS), rows)](
            q, weights, pages, page_table, q_start, kv_len, positions, scores,
            first, sequences, heads, channels, count,
            q.stride(0), weights.stride(0), page_table.stride(0), scores.stride(0),
            PAGE_SIZE=page_size, HEADS=max(16, power_of_two(heads)),
            CHANNELS=max(16, power_of_two(channels)), KEYS=BLOCK_KEYS,
            SEQUENCES=padded, num_warps=4,
        )  # fmt: skip
        _select_kernel[(rows,)](
            scores, q_start, kv_len, positions, out, first, sequences, count,
            scores.stride(0), out.stride(0), KEYS=BLOCK_SELECT, SEQUENCES=padded, num_warps=4,
        )  # fmt: skip
    return out


def index_select(
    q: torch.Tensor,
    weights: torch.Tensor,
    pages: torch.Tensor,
    page_table: torch.Tensor,
    q_start: torch.Tensor,
    kv_len: torch.Tensor,
    positions: torch.Tensor,
    count: int,
    pool: object = None,
) -> torch.Tensor:
    """Return the bits [T, W] of the ``count`` best keys of each token; see index_select_ref.

    q is [T, H, C]. Bits come as i64 of the same bits as u64, with which torch cannot compute.
    """
    expect("q", q, FLOATS, ("T", "H", "C"))
    check_pages(pages, q.shape[2])
    expect("weights", weights, FLOATS, tuple(q.shape[:2]))
    keys = page_table.shape[1] * pages.shape[1]
    return index_select_into(
        q.flatten(1), weights, pages, page_table, q_start, kv_len, positions, count,
        out=torch.zeros((len(q), words(keys)), dtype=torch.int64, device=q.device),
        scores=torch.empty((min(SEGMENT, len(q)), keys), dtype=torch.float32, device=q.device),
    )  # fmt: skip
