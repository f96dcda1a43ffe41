"""The end of an attention whose keys several programs have shared: softmax over what all of them found."""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ftd.kernels import interpreter  # noqa: F401  loops up to computed bounds need it
from ftd.kernels.attention_tile_triton import LOG2_E, LOWEST
from ftd.kernels.early_triton import early
from ftd.kernels.shapes import power_of_two

# Values of a row that its warp waits for at once, 64 a thread: those of 16 shares of 128 channels.
ON_THEIR_WAY = 2048
# Programs for each row of a list of blocks: with eight shares of 128 rows one row each.
PIECES = 16


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
    PIECES: tl.constexpr,
    SHARES: tl.constexpr,
    EARLY: tl.constexpr,
):
    # ---- program ids: as those of the kernel before, and a piece of the rows
    chunk = tl.program_id(0)
    block = tl.program_id(1)
    piece = tl.program_id(2)
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

    # ---- every so many rows are this program's, one after the other: a warp has nobody to wait for
    end = tl.minimum(end_token - first_token, tokens) * HEADS
    stride = tl.num_programs(0) * BLOCK_M
    column = tl.arange(0, BLOCK_C)
    for row in range(split + splits * piece, end, splits * PIECES):
        head = kv_head * GROUP + chunk % chunks * HEADS + row % HEADS
        is_head = head < (kv_head + 1) * GROUP
        inside = is_head & (column < C)
        # Nobody has written rows of heads that are none: they are read as the first head's, and go nowhere
        cell = (block - split) * stride + chunk * BLOCK_M + tl.where(is_head, row, row - row % HEADS)
        top, total = LOWEST, 0.0
        mixed = tl.zeros([BLOCK_C], tl.float32)
        for first in range(0, splits, SHARES):
            # Without masks: the compiler would issue each masked load only where it is used, one by one
            share = first + tl.arange(0, SHARES)
            at = cell + tl.minimum(share, splits - 1) * stride
            tops = tl.load(parts_ptr + cells * C + at)
            sums = tl.load(parts_ptr + cells * (C + 1) + at)
            values_at = parts_ptr + (at * C)[:, None] + column[None, :]
            if C == BLOCK_C:
                values = tl.load(values_at)
            else:
                values = tl.load(values_at, mask=(column < C)[None, :], other=0.0)
            tops = tl.where(share < splits, tops, LOWEST)
            higher = tl.maximum(top, tl.max(tops, axis=0))
            fade, weight = tl.exp2(top - higher), tl.exp2(tops - higher)
            total = total * fade + tl.sum(sums * weight, axis=0)
            mixed = mixed * fade + tl.sum(values * weight[:, None], axis=0)
            top = higher
        if HAS_SINKS:
            sink = tl.load(sinks_ptr + head, mask=is_head, other=0.0) * LOG2_E
            higher = tl.maximum(top, sink)
            fade = tl.exp2(top - higher)
            total = total * fade + tl.exp2(sink - higher)
            mixed *= fade
        y = mixed / tl.where(total > 0.0, total, 1.0)
        token = (first_token + row // HEADS).to(tl.int64)
        tl.store(
            out_ptr + token * out_stride + head * C + column, y.to(out_ptr.dtype.element_ty), mask=inside
        )


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
    block = max(64, power_of_two(channels))
    _merge_kernel[(tasks, blocks.shape[0], PIECES)](
        q_start, blocks, q_start if sinks is None else sinks, out, parts, parts.shape[0] // (channels + 2),
        out.stride(0), GROUP=group, HEADS=heads, HAS_SINKS=sinks is not None, C=channels, BLOCK_C=block,
        BLOCK_M=rows, PIECES=PIECES, SHARES=max(1, ON_THEIR_WAY // block), num_warps=1, **early(out),
    )  # fmt: skip
