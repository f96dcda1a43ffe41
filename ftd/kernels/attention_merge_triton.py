"""The end of an attention whose keys several programs have shared: softmax over what all of them found."""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ftd.kernels import interpreter  # noqa: F401  loops up to computed bounds need it
from ftd.kernels.attention_tile_triton import LOWEST, add_sink
from ftd.kernels.early_triton import early

# A program of a prompt's merge holds so many rows at once, and 32 values for each of 256 threads.
MERGE_ROWS, MERGE_TILE, MERGE_WARPS = 4, 8192, 8


@triton.jit
def merge(
    # pointers
    values_ptr,
    tops_ptr,
    sums_ptr,
    # sizes
    row,
    known,
    splits,
    # strides
    split_stride,
    # meta
    C: tl.constexpr,
    BLOCK_C: tl.constexpr,
    ROWS: tl.constexpr,
    MERGE: tl.constexpr,
):
    """Return maximum, sum and mixed values of ``row`` [ROWS] after the keys of all ``splits``.

    Each has left C values, a maximum and a sum a row; ``split_stride`` rows lie between those of two splits.
    """
    column = tl.arange(0, BLOCK_C)
    top = tl.full([ROWS], LOWEST, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, BLOCK_C], tl.float32)
    for first in range(0, splits, MERGE):
        split = first + tl.arange(0, MERGE)
        inside = (split < splits)[:, None] & known[None, :]
        cell = (split * split_stride)[:, None] + row[None, :]
        at = values_ptr + (cell * C)[:, :, None] + column[None, None, :]
        part = tl.load(at, mask=inside[:, :, None] & (column < C)[None, None, :], other=0.0)
        tops = tl.load(tops_ptr + cell, mask=inside, other=LOWEST)
        sums = tl.load(sums_ptr + cell, mask=inside, other=0.0)
        higher = tl.maximum(top, tl.max(tops, axis=0))
        weight = tl.exp2(tops - higher[None, :])
        fade = tl.exp2(top - higher)
        total = total * fade + tl.sum(sums * weight, axis=0)
        mixed = mixed * fade[:, None] + tl.sum(part * weight[:, :, None], axis=0)
        top = higher
    return top, total, mixed


@triton.jit
def _merge_kernel(
    # pointers
    q_start_ptr,
    blocks_ptr,
    sinks_ptr,
    out_ptr,
    parts_ptr,
    # sizes
    cells,
    # strides
    out_stride,
    # meta
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    C: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_M: tl.constexpr,
    ROWS: tl.constexpr,
    MERGE: tl.constexpr,
    EARLY: tl.constexpr,
):
    # program ids: as those of the kernel before
    chunk = tl.program_id(0)
    block = tl.program_id(1)
    chunks: tl.constexpr = (GROUP + HEADS - 1) // HEADS
    tokens: tl.constexpr = BLOCK_M // HEADS
    kv_head = chunk // chunks
    sequence = tl.load(blocks_ptr + 4 * block)
    first_token = tl.load(blocks_ptr + 4 * block + 1)
    split = tl.load(blocks_ptr + 4 * block + 2)
    splits = tl.load(blocks_ptr + 4 * block + 3)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    if (sequence < 0) | (splits < 2):
        return
    end_token = tl.load(q_start_ptr + sequence + 1)

    # rows that this program merges
    share = (BLOCK_M + splits - 1) // splits
    end = tl.minimum((split + 1) * share, tl.minimum(end_token - first_token, tokens) * HEADS)
    stride = tl.num_programs(0) * BLOCK_M
    place = (block - split) * stride + chunk * BLOCK_M
    column = tl.arange(0, BLOCK_C)
    for first in range(split * share, end, ROWS):
        row = first + tl.arange(0, ROWS)
        token = first_token + row // HEADS
        head = kv_head * GROUP + chunk % chunks * HEADS + row % HEADS
        known = (row < end) & (head < (kv_head + 1) * GROUP)
        top, total, mixed = merge(
            parts_ptr + place * C,
            parts_ptr + cells * C + place,
            parts_ptr + cells * (C + 1) + place,
            row,
            known,
            splits,
            stride,
            C,
            BLOCK_C,
            ROWS,
            MERGE,
        )
        if HAS_SINKS:
            top, total, mixed = add_sink(sinks_ptr + head, known, top, total, mixed)
        y = mixed / tl.where(total > 0.0, total, 1.0)[:, None]
        inside = known[:, None] & (column < C)[None, :]
        out_at = out_ptr + (token.to(tl.int64) * out_stride + head * C)[:, None] + column[None, :]
        tl.store(out_at, y.to(out_ptr.dtype.element_ty), mask=inside)


def merge_shares(
    q_start: torch.Tensor,
    blocks: torch.Tensor,
    sinks: torch.Tensor | None,
    out: torch.Tensor,
    parts: torch.Tensor,
    group: int,
    heads: int,
    channels: int,
    rows: int,
    tasks: int,
) -> None:
    """Write to ``out`` what programs have left in ``parts`` that shared the keys of blocks.

    group     heads of a key-value head, of which a program takes ``heads``
    channels  of a head in ``out``
    rows      of a program
    tasks     programs of one row of ``blocks``
    """
    block = max(64, int(triton.next_power_of_2(channels)))
    _merge_kernel[(tasks, blocks.shape[0])](
        q_start, blocks, q_start if sinks is None else sinks, out, parts, parts.shape[0] // (channels + 2),
        out.stride(0), GROUP=group, HEADS=heads, HAS_SINKS=sinks is not None, C=channels, BLOCK_C=block,
        BLOCK_M=rows, ROWS=MERGE_ROWS, MERGE=max(1, MERGE_TILE // (MERGE_ROWS * block)),
        num_warps=MERGE_WARPS, **early(out),
    )  # fmt: skip
