"""Attention of several tokens a sequence on a GPU.

    program (heads, block)     heads of one key-value head times neighbouring tokens of one sequence
      keys that every row sees, without masks ─▶ the rest, masked

Which tokens of which sequences: a list of blocks that ``prefill_blocks`` makes on the host.
"""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from ftd.kernels.attention_tile_triton import LOG2_E, LOWEST, Tiles, add_sink, attend, check, pages_of
from ftd.kernels.shapes import expect

# Heads that share a program: at most this many, so that a block is at least 8 tokens.
MAX_HEADS = 16

# By the channels of a head, padded to a power of two, and whether the pages are f32.
TILES = {
    (64, False): Tiles(128, 128, 8, 3),
    (128, False): Tiles(128, 64, 8, 3),
    (256, False): Tiles(64, 32, 8, 3),
    (64, True): Tiles(32, 32, 8, 2),
    (128, True): Tiles(32, 16, 8, 2),
    (256, True): Tiles(16, 16, 8, 2),
}


@triton.jit
def _prefill_kernel(
    # pointers
    q_ptr,
    k_ptr,
    v_ptr,
    table_ptr,
    q_start_ptr,
    positions_ptr,
    blocks_ptr,
    sinks_ptr,
    out_ptr,
    # sizes
    scale,
    # strides
    q_stride,
    out_stride,
    table_stride,
    page_stride,
    head_stride,
    # meta
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    C: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    # program ids: HEADS heads of a key-value head, a block of rows of one sequence
    chunk = tl.program_id(0)
    block = tl.program_id(1)
    chunks: tl.constexpr = (GROUP + HEADS - 1) // HEADS
    tokens: tl.constexpr = BLOCK_M // HEADS
    kv_head = chunk // chunks
    sequence = tl.load(blocks_ptr + 2 * block).to(tl.int64)
    first_token = tl.load(blocks_ptr + 2 * block + 1)
    end_token = tl.load(q_start_ptr + sequence + 1)

    # rows: HEADS heads of one token, then of the next
    row = tl.arange(0, BLOCK_M)
    token = first_token + row // HEADS
    head = kv_head * GROUP + chunk % chunks * HEADS + row % HEADS
    known = (row < tokens * HEADS) & (token < end_token) & (head < (kv_head + 1) * GROUP)
    column = tl.arange(0, BLOCK_C)
    inside = known[:, None] & (column < C)[None, :]
    q_at = q_ptr + (token.to(tl.int64) * q_stride + head * C)[:, None] + column[None, :]
    q = tl.load(q_at, mask=inside, other=0.0).to(tl.float32)
    q = (q * scale).to(k_ptr.dtype.element_ty)
    position = tl.load(positions_ptr + token, mask=known, other=0)
    last = tl.max(position, axis=0)
    earliest = tl.min(tl.where(known, position, last), axis=0)

    top = tl.full([BLOCK_M], LOWEST, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    mixed = tl.zeros([BLOCK_M, BLOCK_C], tl.float32)
    k_ptr += kv_head * head_stride
    v_ptr += kv_head * head_stride
    table_ptr += sequence * table_stride

    # keys that all rows see, then those that some see
    start = 0
    if WINDOW > 0:
        start = tl.maximum(earliest - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
    else:
        full = (earliest + 1) // BLOCK_N * BLOCK_N
        page = pages_of(table_ptr, 0, last + 1, PAGE_SIZE, BLOCK_N)
        for first_key in range(0, full, BLOCK_N):
            next_page = pages_of(table_ptr, first_key + BLOCK_N, last + 1, PAGE_SIZE, BLOCK_N)
            top, total, mixed = attend(
                q,
                top,
                total,
                mixed,
                page,
                k_ptr,
                v_ptr,
                tl.multiple_of(first_key, BLOCK_N),
                last + 1,
                position,
                page_stride,
                False,
                WINDOW,
                PAGE_SIZE,
                C,
                BLOCK_C,
                BLOCK_N,
            )
            page = next_page
        start = full
    page = pages_of(table_ptr, start, last + 1, PAGE_SIZE, BLOCK_N)
    for first_key in range(start, last + 1, BLOCK_N):
        next_page = pages_of(table_ptr, first_key + BLOCK_N, last + 1, PAGE_SIZE, BLOCK_N)
        top, total, mixed = attend(
            q,
            top,
            total,
            mixed,
            page,
            k_ptr,
            v_ptr,
            tl.multiple_of(first_key, BLOCK_N),
            last + 1,
            position,
            page_stride,
            True,
            WINDOW,
            PAGE_SIZE,
            C,
            BLOCK_C,
            BLOCK_N,
        )
        page = next_page

    if HAS_SINKS:
        top, total, mixed = add_sink(sinks_ptr + head, known, top, total, mixed)
    y = mixed / tl.where(total > 0.0, total, 1.0)[:, None]
    out_at = out_ptr + (token.to(tl.int64) * out_stride + head * C)[:, None] + column[None, :]
    tl.store(out_at, y.to(out_ptr.dtype.element_ty), mask=inside)


def _tiles(k_pages: torch.Tensor) -> tuple[Tiles, int]:
    """Return the launch parameters, and channels padded."""
    block = max(64, int(triton.next_power_of_2(k_pages.shape[2])))
    return TILES[block, k_pages.dtype == torch.float32], block


def block_tokens(k_pages: torch.Tensor, num_heads: int) -> int:
    """Return how many tokens a block of ``prefill_blocks`` holds."""
    return _tiles(k_pages)[0].rows // min(num_heads // int(k_pages.shape[1]), MAX_HEADS)


def prefill_blocks(
    q_start: NDArray[np.int32], block_tokens: int, first_sequence: int = 0
) -> NDArray[np.int32]:
    """Return [num_blocks, 2] i32: sequence and first row of each block, from ``first_sequence`` on.

    q_start  [B + 1] i32   first row of each sequence

    Later blocks of a sequence see more keys, so they come first: the last programs to start are short.
    """
    blocks = [
        (int(first), sequence)
        for sequence in range(first_sequence, len(q_start) - 1)
        for first in range(int(q_start[sequence]), int(q_start[sequence + 1]), block_tokens)
    ]
    offsets = sorted(blocks, key=lambda block: int(q_start[block[1]]) - block[0])
    return np.array([(sequence, first) for first, sequence in offsets], np.int32).reshape(-1, 2)


def attention_prefill(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    page_table: torch.Tensor,
    q_start: torch.Tensor,
    positions: torch.Tensor,
    blocks: torch.Tensor,
    num_heads: int,
    scale: float,
    window: int = 0,
    sinks: torch.Tensor | None = None,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attend from each row that ``blocks`` names; see attention_ref. Other rows of ``out`` stay as they are.

    q, out      [T, H*C] f32 or bf16           any stride between rows
    k_pages     [P, G, C, page_size] f16 or f32
    v_pages     [P, G, page_size, C] as k_pages
    page_table  [B, max_pages] i32             any stride between rows; entries past a position are not read
    q_start     [B + 1] i32                    first row of each sequence
    positions   [T] i32                        position of each row, below max_pages * page_size
    blocks      [num_blocks, 2] i32            what prefill_blocks gave for block_tokens(k_pages, H)
    scale                                      factor on q.k, above 0
    window      keys seen at most, the query's own included; 0 sees all
    sinks       [H] f32                        one more logit a head that has no value

    Nothing is allocated if ``out`` is given.
    Raises ValueError if a shape or type differs or a number lies out of range.
    """
    out = torch.empty_like(q) if out is None else out
    check(q, k_pages, v_pages, page_table, num_heads, scale, window, sinks, out)
    _, groups, channels, page_size = k_pages.shape
    expect("q_start", q_start, "int32", (page_table.shape[0] + 1,))
    expect("positions", positions, "int32", (q.shape[0],))
    expect("blocks", blocks, "int32", ("num_blocks", 2))
    num_blocks = int(blocks.shape[0])
    if not num_blocks:
        return out
    tiles, block = _tiles(k_pages)
    group = num_heads // groups
    heads = min(group, MAX_HEADS)
    _prefill_kernel[(groups * triton.cdiv(group, heads), num_blocks)](
        q,
        k_pages,
        v_pages,
        page_table,
        q_start,
        positions,
        blocks,
        positions if sinks is None else sinks,
        out,
        scale * LOG2_E.value,
        q.stride(0),
        out.stride(0),
        page_table.stride(0),
        k_pages.stride(0),
        k_pages.stride(1),
        GROUP=group,
        HEADS=heads,
        WINDOW=window,
        HAS_SINKS=sinks is not None,
        PAGE_SIZE=page_size,
        C=channels,
        BLOCK_C=block,
        BLOCK_M=tiles.rows,
        BLOCK_N=tiles.keys,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )
    return out
