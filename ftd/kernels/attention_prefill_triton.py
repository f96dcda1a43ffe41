"""Attention of several tokens a sequence on a GPU.

    program (heads, block)     heads of one key-value head times neighbouring tokens of one sequence
      keys that every row sees, without masks ─▶ the rest, masked

Which tokens of which sequences: a list of blocks that ``prefill_blocks`` makes on the host. A few of them
would leave most of a card idle, so each is listed several times and every program takes a share of its keys:

    program (heads, block, share)  ─▶ maximum, sum, mixed values ─▶ workspace
    the same, in another kernel    ─▶ merges a share of the block's rows
"""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl

from ftd.kernels.attention_merge_triton import merge_shares
from ftd.kernels.attention_spread import Spread
from ftd.kernels.attention_tile_triton import LOG2_E, LOWEST, Tiles, add_sink, attend, check, pages_of
from ftd.kernels.shapes import ceil_div, expect, power_of_two

# Heads that share a program: at most this many, so that a block is at least 8 tokens.
MAX_HEADS = 16
# Programs that fill the 132 multiprocessors of an H200 once: a tile takes more than half of one's memory.
WANTED_PROGRAMS = 128

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
    parts_ptr,
    # sizes
    scale,
    cells,
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
    SPLIT: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    C: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    # ---- program ids: HEADS heads of a key-value head, a block of rows of one sequence
    chunk = tl.program_id(0)
    block = tl.program_id(1)
    chunks: tl.constexpr = (GROUP + HEADS - 1) // HEADS
    tokens: tl.constexpr = BLOCK_M // HEADS
    kv_head = chunk // chunks
    sequence = tl.load(blocks_ptr + 4 * block).to(tl.int64)
    if SPLIT:  # noqa: SIM102  a constant: only lists of shares have padding
        if sequence < 0:
            return
    first_token = tl.load(blocks_ptr + 4 * block + 1)
    end_token = tl.load(q_start_ptr + sequence + 1)

    # ---- rows: HEADS heads of one token, then of the next
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

    # ---- share of the keys
    start = 0
    if WINDOW > 0:
        start = tl.maximum(earliest - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
    end = last + 1
    if SPLIT:
        split = tl.load(blocks_ptr + 4 * block + 2)
        splits = tl.load(blocks_ptr + 4 * block + 3)
        share = tl.cdiv(tl.cdiv(end - start, BLOCK_N), splits) * BLOCK_N
        start += split * share
        end = tl.minimum(start + share, end)

    # ---- keys that all rows see, then those that some see
    if WINDOW == 0:
        full = (earliest + 1) // BLOCK_N * BLOCK_N
        if SPLIT:
            full = tl.maximum(tl.minimum(full, end), start)
        page = pages_of(table_ptr, start, last + 1, PAGE_SIZE, BLOCK_N)
        for first_key in range(start, full, BLOCK_N):
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
    for first_key in range(start, end, BLOCK_N):
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

    # ---- store: a share's part for the merge, or the result
    if SPLIT:  # noqa: SIM102  a constant: what follows is not compiled without it
        if splits > 1:
            # parts: of each program and row, C mixed values; of all cells, then maxima, then sums
            cell = (block * tl.num_programs(0) + chunk) * BLOCK_M + row
            tl.store(parts_ptr + (cell * C)[:, None] + column[None, :], mixed, mask=inside)
            tl.store(parts_ptr + cells * C + cell, top, mask=known)
            tl.store(parts_ptr + cells * (C + 1) + cell, total, mask=known)
            return
    if HAS_SINKS:
        top, total, mixed = add_sink(sinks_ptr + head, known, top, total, mixed)
    y = mixed / tl.where(total > 0.0, total, 1.0)[:, None]
    out_at = out_ptr + (token.to(tl.int64) * out_stride + head * C)[:, None] + column[None, :]
    tl.store(out_at, y.to(out_ptr.dtype.element_ty), mask=inside)


def _tiles(k_pages: torch.Tensor) -> tuple[Tiles, int]:
    """Return the launch parameters, and channels padded."""
    block = max(64, power_of_two(k_pages.shape[2]))
    return TILES[block, k_pages.dtype == torch.float32], block


def _tasks(k_pages: torch.Tensor, num_heads: int) -> tuple[int, int]:
    """Return heads of a program, and programs that one block takes."""
    groups = int(k_pages.shape[1])
    heads = min(num_heads // groups, MAX_HEADS)
    return heads, groups * ceil_div(num_heads // groups, heads)


def spread(k_pages: torch.Tensor, num_heads: int, window: int = 0) -> Spread:
    """Return how ``attention_prefill`` wants prompts to be shared out."""
    heads, tasks = _tasks(k_pages, num_heads)
    return Spread(_tiles(k_pages)[0].rows // heads, max(1, WANTED_PROGRAMS // tasks), window)


def num_parts(k_pages: torch.Tensor, num_heads: int) -> int:
    """Return how many f32 the programs that share keys leave for the merge."""
    rows = _tiles(k_pages)[0].rows * _tasks(k_pages, num_heads)[1]
    return spread(k_pages, num_heads).programs * rows * (int(k_pages.shape[2]) + 2)


def _check_lists(
    sequences: int, tokens: int, q_start: torch.Tensor, positions: torch.Tensor, blocks: torch.Tensor
) -> None:
    """Raise ValueError unless the step's lists fit its sequences and tokens."""
    expect("q_start", q_start, "int32", (sequences + 1,))
    expect("positions", positions, "int32", (tokens,))
    expect("blocks", blocks, "int32", ("num_blocks", 4))


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
    out: torch.Tensor,
    parts: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attend from each row that ``blocks`` names; see attention_ref. Other rows of ``out`` stay as they are.

    q, out      [T, H*C] f32 or bf16           any stride between rows
    k_pages     [P, G, C, page_size] f16 or f32
    v_pages     [P, G, page_size, C] as k_pages
    page_table  [B, max_pages] i32             any stride between rows; entries past a position are not read
    q_start     [B + 1] i32                    first row of each sequence
    positions   [T] i32                        position of each row, below max_pages * page_size
    blocks      [num_blocks, 4] i32            of prefill_blocks and spread(…, window); negative: padding
    scale                                      factor on q.k, above 0
    window      keys seen at most, the query's own included; 0 sees all
    sinks       [H] f32                        one more logit a head that has no value
    parts       [num_parts(k_pages, H)] f32    what shares leave for their merge; None: no keys are shared

    Safe under graph capture.
    Raises ValueError if a shape or type differs or a number lies out of range.
    """
    check(q, k_pages, v_pages, page_table, num_heads, scale, window, sinks, out)
    _check_lists(page_table.shape[0], q.shape[0], q_start, positions, blocks)
    if parts is not None and parts.shape[0] < num_parts(k_pages, num_heads):
        raise ValueError(f"parts must hold {num_parts(k_pages, num_heads)} values, got {parts.shape[0]}")
    if not len(blocks):
        return out
    _, groups, channels, page_size = k_pages.shape
    tiles, block = _tiles(k_pages)
    heads, tasks = _tasks(k_pages, num_heads)
    cells = 0 if parts is None else parts.shape[0] // (channels + 2)
    _prefill_kernel[(tasks, len(blocks))](
        q, k_pages, v_pages, page_table, q_start, positions, blocks,
        positions if sinks is None else sinks, out, positions if parts is None else parts,
        scale * LOG2_E.value, cells,
        q.stride(0), out.stride(0), page_table.stride(0), k_pages.stride(0), k_pages.stride(1),
        GROUP=num_heads // groups, HEADS=heads, WINDOW=window, HAS_SINKS=sinks is not None,
        SPLIT=parts is not None, PAGE_SIZE=page_size, C=channels, BLOCK_C=block, BLOCK_M=tiles.rows,
        BLOCK_N=tiles.keys, num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    if parts is not None:
        merge_shares(
            q_start, blocks, sinks, out, parts, num_heads // groups, heads, channels, tiles.rows, tasks
        )
    return out
