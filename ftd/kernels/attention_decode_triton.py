"""Attention of one token a sequence on a GPU, its keys shared out to several programs.

    program (split, heads, sequence)     all query heads of a key-value head, so its pages are read once
      share of the keys ─▶ maximum, sum, mixed values ─▶ workspace
      the last of a sequence's splits to finish merges what all of them have found

How many splits are launched depends on shapes alone; what each takes, on the sequence's length on the device.

Slower on an H200, in a layer of 30b-a3b with 1,024 keys: the first tile in registers before the wait and the
new key apart from the pages, by 0.1 us (4 heads, 64 keys and 4 warps a program) to 9.6 (8 heads, 128, 8).
"""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ftd.kernels.attention_tile_triton import LOG2_E, LOWEST, Tiles, add_sink, attend, check, pages_of
from ftd.kernels.attention_token_triton import (
    NewTokens,
    angles,
    load_gains,
    load_heads,
    rotated,
    store_token,
)
from ftd.kernels.early_triton import early
from ftd.kernels.shapes import ceil_div, expect, power_of_two

# Tensor cores take tiles of at least 16 rows: so many heads cost no more than one.
ROWS = 16
# Fewer keys than this are not worth another program.
SPLIT_KEYS = 128
# Programs that fill the 132 multiprocessors of an H200 about twice over.
WANTED_PROGRAMS = 256
# Also a large batch is split, for the sake of a long sequence among short ones.
MIN_SPLITS = 8
MAX_SPLITS = 64
# One program merges them all: on an H200, 64 splits of 4 heads took 10 us longer than 32.
MAX_MERGED_HEADS = 256
# Values that a merge holds at once: 128 for each of 64 threads.
MERGE_TILE = 8192

# By the channels of a head, padded to a power of two, and whether the pages are f32.
TILES = {
    (64, False): Tiles(ROWS, 128, 2, 3),
    (128, False): Tiles(ROWS, 64, 2, 3),
    (256, False): Tiles(ROWS, 32, 2, 3),
    (64, True): Tiles(ROWS, 32, 4, 2),
    (128, True): Tiles(ROWS, 32, 8, 2),
    (256, True): Tiles(ROWS, 16, 8, 2),
}


@triton.jit
def _merge(
    # pointers
    values_ptr,
    tops_ptr,
    sums_ptr,
    sinks_ptr,
    out_ptr,
    # sizes
    active,
    num_heads,
    # meta
    HEADS: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    C: tl.constexpr,
    BLOCK_C: tl.constexpr,
    HEADS_PADDED: tl.constexpr,
    MERGE: tl.constexpr,
):
    """Write softmax over what the active splits have found."""
    head = tl.arange(0, HEADS_PADDED)
    column = tl.arange(0, BLOCK_C)
    top = tl.full([HEADS_PADDED], LOWEST, tl.float32)
    total = tl.zeros([HEADS_PADDED], tl.float32)
    mixed = tl.zeros([HEADS_PADDED, BLOCK_C], tl.float32)
    for first in range(0, active, MERGE):
        split = first + tl.arange(0, MERGE)
        known = (split < active)[:, None] & (head < num_heads)[None, :]
        cell = (split * HEADS)[:, None] + head[None, :]
        at = values_ptr + (cell * C)[:, :, None] + column[None, None, :]
        part = tl.load(at, mask=known[:, :, None] & (column < C)[None, None, :], other=0.0)
        tops = tl.load(tops_ptr + cell, mask=known, other=LOWEST)
        sums = tl.load(sums_ptr + cell, mask=known, other=0.0)
        higher = tl.maximum(top, tl.max(tops, axis=0))
        weight = tl.exp2(tops - higher[None, :])
        fade = tl.exp2(top - higher)
        total = total * fade + tl.sum(sums * weight, axis=0)
        mixed = mixed * fade[:, None] + tl.sum(part * weight[:, :, None], axis=0)
        top = higher
    if HAS_SINKS:
        top, total, mixed = add_sink(sinks_ptr + head, head < num_heads, top, total, mixed)
    y = mixed / tl.where(total > 0.0, total, 1.0)[:, None]
    inside = (head < num_heads)[:, None] & (column < C)[None, :]
    tl.store(out_ptr + (head * C)[:, None] + column[None, :], y.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _decode_kernel(
    # pointers
    q_ptr, k_ptr, v_ptr, table_ptr, kv_len_ptr, sinks_ptr, out_ptr, parts_ptr, counts_ptr,
    new_k_ptr, new_v_ptr, kv_index_ptr, positions_ptr, inv_freq_ptr, q_norm_ptr, k_norm_ptr,
    # sizes
    scale, rope_scale, eps,
    # strides
    q_stride, out_stride, table_stride, page_stride, head_stride, new_k_stride, new_v_stride,
    # meta
    GROUP: tl.constexpr, HEADS: tl.constexpr, WINDOW: tl.constexpr, HAS_SINKS: tl.constexpr,
    SPLITS: tl.constexpr, SPLIT_KEYS: tl.constexpr, PAGE_SIZE: tl.constexpr, C: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEADS_PADDED: tl.constexpr,
    MERGE: tl.constexpr, NEW: tl.constexpr, HAS_NORM: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    # program ids: the split, HEADS heads of a key-value head, the sequence
    split = tl.program_id(0)
    chunk = tl.program_id(1)
    sequence = tl.program_id(2).to(tl.int64)
    chunks: tl.constexpr = (GROUP + HEADS - 1) // HEADS
    kv_head = chunk // chunks
    first_head = kv_head * GROUP + chunk % chunks * HEADS
    num_heads = tl.minimum(HEADS, (kv_head + 1) * GROUP - first_head)

    row = tl.arange(0, BLOCK_M)
    column = tl.arange(0, BLOCK_C)
    inside = (row < num_heads)[:, None] & (column < C)[None, :]
    q_at = q_ptr + sequence * q_stride + ((first_head + row) * C)[:, None]
    # share of the keys
    length = tl.load(kv_len_ptr + sequence, eviction_policy="evict_last")
    first_block = 0
    if WINDOW > 0:
        first_block = tl.maximum(length - WINDOW, 0) // BLOCK_N
    blocks = (length + BLOCK_N - 1) // BLOCK_N - first_block
    share = tl.maximum((blocks + SPLITS - 1) // SPLITS, SPLIT_KEYS // BLOCK_N)
    active = tl.maximum((blocks + share - 1) // share, 1)
    first = first_block + split * share
    last = tl.minimum(first + share, first_block + blocks)
    table_ptr += sequence * table_stride

    # what needs nothing of the kernel before
    page = pages_of(table_ptr, first * BLOCK_N, length, PAGE_SIZE, BLOCK_N)
    if NEW:
        index = tl.load(kv_index_ptr + sequence)
        cosine, sine = angles(tl.load(positions_ptr + sequence), inv_freq_ptr, rope_scale, C)
        q_gain, q_partner_gain = load_gains(q_norm_ptr, cosine, sine, C, HAS_NORM)
        k_gain, k_partner_gain = load_gains(k_norm_ptr, cosine, sine, C, HAS_NORM)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    if NEW:
        x, y = load_heads(q_at, inside, C)
        k_at = new_k_ptr + sequence * new_k_stride + kv_head * C + tl.zeros([1, 1], tl.int32)
        new_x, new_y = load_heads(k_at, (column < C)[None, :], C)
        v_at = new_v_ptr + sequence * new_v_stride + kv_head * C
        value = tl.load(v_at + column[None, :])
        rows = rotated(x, y, q_gain, q_partner_gain, eps, C, HAS_NORM)
        key = rotated(new_x, new_y, k_gain, k_partner_gain, eps, C, HAS_NORM)
    else:
        rows = tl.load(q_at + column[None, :], mask=inside, other=0.0)

    if split < active:
        q = (rows.to(tl.float32) * scale).to(k_ptr.dtype.element_ty)
        position = tl.zeros([BLOCK_M], tl.int32) + (length - 1)
        top = tl.full([BLOCK_M], LOWEST, tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        mixed = tl.zeros([BLOCK_M, BLOCK_C], tl.float32)

        # loop over the share
        if NEW:  # noqa: SIM102  a constant: what follows is not compiled without it
            if (last == first_block + blocks) & (first < last) & (index >= 0):
                k_head, v_head = k_ptr + kv_head * head_stride, v_ptr + kv_head * head_stride
                store_token(key, value, k_head, v_head, index, page_stride, C, PAGE_SIZE)
        for block in range(first, last):
            next_page = pages_of(table_ptr, (block + 1) * BLOCK_N, length, PAGE_SIZE, BLOCK_N)
            top, total, mixed = attend(
                q,
                top,
                total,
                mixed,
                page,
                k_ptr + kv_head * head_stride,
                v_ptr + kv_head * head_stride,
                block * BLOCK_N,
                length,
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

        out_at = out_ptr + sequence * out_stride + first_head * C
        if active == 1:
            if HAS_SINKS:
                at = sinks_ptr + first_head + row
                top, total, mixed = add_sink(at, row < num_heads, top, total, mixed)
            y = mixed / tl.where(total > 0.0, total, 1.0)[:, None]
            tl.store(
                out_at + (row * C)[:, None] + column[None, :], y.to(out_ptr.dtype.element_ty), mask=inside
            )
        else:
            # parts: of each split and head, C mixed values; then of each split and head, maximum and sum
            task = sequence * tl.num_programs(1) + chunk
            tasks = tl.num_programs(1) * tl.num_programs(2)
            values_ptr = parts_ptr + task * (SPLITS * HEADS * C)
            tops_ptr = parts_ptr + tasks * (SPLITS * HEADS * C) + task * (SPLITS * HEADS * 2)
            sums_ptr = tops_ptr + SPLITS * HEADS
            cell = split * HEADS + row
            tl.store(values_ptr + (cell * C)[:, None] + column[None, :], mixed, mask=inside)
            tl.store(tops_ptr + cell, top, mask=row < num_heads)
            tl.store(sums_ptr + cell, total, mask=row < num_heads)
            tl.debug_barrier()  # the count says that all threads have stored
            before = tl.atomic_add(counts_ptr + task, 1, sem="acq_rel")
            if before == active - 1:
                tl.store(counts_ptr + task, 0)
                _merge(
                    values_ptr,
                    tops_ptr,
                    sums_ptr,
                    sinks_ptr + first_head,
                    out_at,
                    active,
                    num_heads,
                    HEADS,
                    HAS_SINKS,
                    C,
                    BLOCK_C,
                    HEADS_PADDED,
                    MERGE,
                )


@dataclass(frozen=True, slots=True, eq=False)
class DecodeWorkspace:
    """Memory that the splits of one launch share; launches of one stream may use the same.

    parts   f32   what each split has found
    counts  i32   splits of each sequence and group that have finished; 0 between launches
    """

    parts: torch.Tensor
    counts: torch.Tensor

    def expect(self, num_parts: int, num_counts: int) -> None:
        """Raise ValueError unless it holds as many of each."""
        if self.parts.shape[0] < num_parts or self.counts.shape[0] < num_counts:
            raise ValueError(f"workspace must hold {num_parts} values, got {self.parts.shape[0]}")


def num_splits(sequences: int, tasks: int, heads: int, max_keys: int) -> int:
    """Return how many programs share the keys of a sequence: a power of two, by shapes known on the host.

    tasks     programs of a sequence apart from splits
    heads     query heads of a program
    max_keys  keys that a sequence may have
    """
    wanted = max(MIN_SPLITS, WANTED_PROGRAMS // (sequences * tasks))
    useful = ceil_div(max_keys, SPLIT_KEYS)
    most = min(MAX_SPLITS, MAX_MERGED_HEADS // heads)
    return power_of_two(max(1, min(wanted, useful, most)))


def _tasks(num_heads: int, num_kv_heads: int) -> tuple[int, int]:
    """Return heads of a program, and programs that one split of one sequence takes."""
    group = num_heads // num_kv_heads
    heads = min(group, ROWS)
    return heads, num_kv_heads * ceil_div(group, heads)


def decode_workspace(
    max_sequences: int, num_heads: int, num_kv_heads: int, channels: int, max_keys: int, device: str
) -> DecodeWorkspace:
    """Return a workspace that suffices for up to ``max_sequences`` sequences of up to ``max_keys`` keys."""
    heads, tasks = _tasks(num_heads, num_kv_heads)
    cells = max(
        count * tasks * heads * num_splits(count, tasks, heads, max_keys)
        for count in range(1, max_sequences + 1)
    )
    parts = torch.empty(cells * (channels + 2), dtype=torch.float32, device=device)
    return DecodeWorkspace(parts, torch.zeros(max_sequences * tasks, dtype=torch.int32, device=device))


def _of_new(
    new: NewTokens | None, q: torch.Tensor, k_pages: torch.Tensor, v_pages: torch.Tensor, unused: torch.Tensor
) -> tuple[tuple[torch.Tensor, ...], tuple[float, float], tuple[int, int]]:
    """Check a step's own tokens; return what the kernel gets of them: pointers, numbers, strides."""
    if new is None:
        return (unused,) * 7, (1.0, 0.0), (0, 0)
    new.check(q, k_pages, v_pages)
    norms = [unused if norm is None else norm for norm in (new.q_norm, new.k_norm)]
    tensors = (new.k, new.v, new.kv_index, new.positions, new.inv_freq, *norms)
    return tensors, (new.rope_scale, new.eps), (new.k.stride(0), new.v.stride(0))


def attention_decode(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    page_table: torch.Tensor,
    kv_len: torch.Tensor,
    num_heads: int,
    scale: float,
    window: int = 0,
    sinks: torch.Tensor | None = None,
    *,
    out: torch.Tensor | None = None,
    workspace: DecodeWorkspace | None = None,
    new: NewTokens | None = None,
) -> torch.Tensor:
    """Attend from the last position of each sequence; see attention_ref.

    q, out      [B, H*C] f32 or bf16           any stride between rows
    k_pages     [P, G, C, page_size] f16 or f32
    v_pages     [P, G, page_size, C] as k_pages
    page_table  [B, max_pages] i32             any stride between rows; entries past kv_len are not read
    kv_len      [B] i32                        at most max_pages * page_size; 0 (padding) gives zeros
    scale                                      factor on q.k, above 0
    window      keys seen at most, the query's own included; 0 sees all
    sinks       [H] f32                        one more logit a head that has no value
    workspace   of decode_workspace for at least B sequences and max_pages * page_size keys
    new         q is neither normalised nor rotated yet, and the last key and value are not stored

    Safe under graph capture if ``out`` and ``workspace`` are given; one launch is right for every length.
    Raises ValueError if a shape or type differs or a number lies out of range.
    """
    out = torch.empty_like(q) if out is None else out
    check(q, k_pages, v_pages, page_table, num_heads, scale, window, sinks, out)
    sequences, max_pages = page_table.shape
    _, groups, channels, page_size = k_pages.shape
    expect("q", q, str(q.dtype).removeprefix("torch."), (sequences, "H*C"))
    expect("kv_len", kv_len, "int32", (sequences,))
    if not sequences:
        return out
    heads, tasks = _tasks(num_heads, groups)
    max_keys = max_pages * page_size
    splits = num_splits(sequences, tasks, heads, max_keys)
    if workspace is None:
        workspace = decode_workspace(sequences, num_heads, groups, channels, max_keys, str(q.device))
    workspace.expect(sequences * tasks * heads * splits * (channels + 2), sequences * tasks)
    block = max(64, power_of_two(channels))
    tiles = TILES[block, k_pages.dtype == torch.float32]
    heads_padded, unused = power_of_two(heads), kv_len  # which stands for a pointer that is not read
    token, numbers, strides = _of_new(new, q, k_pages, v_pages, unused)
    _decode_kernel[(splits, tasks, sequences)](
        q, k_pages, v_pages, page_table, kv_len, unused if sinks is None else sinks, out,
        workspace.parts, workspace.counts, *token, scale * LOG2_E.value, *numbers,
        q.stride(0), out.stride(0), page_table.stride(0), k_pages.stride(0), k_pages.stride(1), *strides,
        GROUP=num_heads // groups, HEADS=heads, WINDOW=window, HAS_SINKS=sinks is not None,
        SPLITS=splits, SPLIT_KEYS=SPLIT_KEYS, PAGE_SIZE=page_size, C=channels, BLOCK_C=block,
        BLOCK_M=tiles.rows, BLOCK_N=tiles.keys, HEADS_PADDED=heads_padded,
        MERGE=max(1, min(splits, MERGE_TILE // (heads_padded * block))), **early(q),
        NEW=new is not None, HAS_NORM=token[-1] is not unused, num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return out
