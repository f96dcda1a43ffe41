"""latent_attention on a GPU: heads of a token share its keys, so heads and tokens are rows of one tile.

    program (split, heads, block)    HEADS heads of neighbouring tokens of one sequence, a share of the keys
      keys [N, latent | rest] ─▶ two products are the score ─▶ softmax ─▶ times the latent part: mixed

A step's sequences of one token share their keys out to splits, which a second kernel merges; how many are
launched depends on shapes alone. Of prompts ``prefill_blocks`` lists blocks, and the keys of few are shared.
"""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ftd.kernels import interpreter  # noqa: F401  loops up to computed bounds need it
from ftd.kernels.attention_merge_triton import merge_shares
from ftd.kernels.attention_spread import Spread, prefill_blocks
from ftd.kernels.attention_tile_triton import LOG2_E, LOWEST
from ftd.kernels.latent_store_ref import check_pages
from ftd.kernels.rms_norm_triton import FLOATS
from ftd.kernels.shapes import ceil_div, expect, expect_range, power_of_two

# Rows and keys of a tile, warps, stages: the accumulator of 512 channels takes most of the registers.
DECODE, PREFILL, F32 = (16, 32, 4, 2), (64, 32, 8, 2), (16, 16, 4, 1)
# Wider ones need tiles that no shared memory holds.
MAX_LATENT = 1024
# Programs that fill the 132 multiprocessors of an H200 about twice over, and keys worth a program.
WANTED_PROGRAMS, SPLIT_KEYS, MAX_SPLITS = 256, 128, 64
# Programs of prompts fill them once: a tile takes most of one's registers.
WANTED_SHARES = 128
# Keys that a word of a selection stands for.
WORD = 64


@triton.jit
def _latent_attention_kernel(
    # pointers
    q_ptr, pages_ptr, table_ptr, q_start_ptr, kv_len_ptr, positions_ptr, blocks_ptr, selected_ptr, out_ptr,
    parts_ptr, tops_ptr,
    # sizes
    scale, H, latent, C, cells,
    # strides
    q_stride, out_stride, table_stride, selected_stride,
    # meta
    DECODE: tl.constexpr, SELECTED: tl.constexpr, HEADS: tl.constexpr, SPLITS: tl.constexpr,
    SHARE: tl.constexpr, PAGE_SIZE: tl.constexpr, LATENT: tl.constexpr, REST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    # ---- program ids
    block = tl.program_id(2)
    if DECODE:
        split, splits = tl.program_id(0), SPLITS
        sequence = tl.program_id(2).to(tl.int64)
        first_token = tl.program_id(2)
        end_token = first_token + 1
    else:
        sequence = tl.load(blocks_ptr + 4 * block).to(tl.int64)
        if sequence < 0:
            return
        first_token = tl.load(blocks_ptr + 4 * block + 1)
        end_token = tl.load(q_start_ptr + sequence + 1)
    # ---- rows: HEADS heads of one token, then of the next
    row = tl.arange(0, BLOCK_M)
    token = first_token + row // HEADS
    head = tl.program_id(1) * HEADS + row % HEADS
    known = (token < end_token) & (head < H)
    if DECODE:
        position = tl.zeros([BLOCK_M], tl.int32) + tl.load(kv_len_ptr + sequence) - 1
    else:
        position = tl.load(positions_ptr + token, mask=known, other=-1)
    last = tl.max(position, axis=0)
    channel, rest = tl.arange(0, LATENT), tl.arange(0, REST)
    q_at = q_ptr + (token.to(tl.int64) * q_stride + head * C)[:, None]
    in_latent, in_rest = (channel < latent)[None, :], (rest < C - latent)[None, :]
    q = tl.load(q_at + channel[None, :], mask=known[:, None] & in_latent, other=0.0).to(tl.float32)
    q_rest = tl.load(q_at + latent + rest[None, :], mask=known[:, None] & in_rest, other=0.0).to(tl.float32)
    q = (q * scale).to(pages_ptr.dtype.element_ty)
    q_rest = (q_rest * scale).to(pages_ptr.dtype.element_ty)
    # ---- share of the keys
    tiles = (last + BLOCK_N) // BLOCK_N
    if DECODE:
        share = tl.maximum((tiles + SPLITS - 1) // SPLITS, SHARE // BLOCK_N)
    else:
        split, splits = 0, 1
        if SPLITS > 1:
            split, splits = tl.load(blocks_ptr + 4 * block + 2), tl.load(blocks_ptr + 4 * block + 3)
        share = (tiles + splits - 1) // splits
    first, end = split * share, tl.minimum((split + 1) * share, tiles)
    if DECODE and SPLITS > 1 and first >= end and split > 0:
        return
    # ---- loop
    top = tl.full([BLOCK_M], LOWEST, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    mixed = tl.zeros([BLOCK_M, LATENT], tl.float32)
    table_ptr += sequence * table_stride
    selected_at = selected_ptr + token.to(tl.int64) * selected_stride
    for tile in range(first, end):
        key = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        there = key <= last
        page = tl.load(table_ptr + key // PAGE_SIZE, mask=there, other=0).to(tl.int64)
        at = pages_ptr + ((page * PAGE_SIZE + key % PAGE_SIZE) * C)[:, None]
        k = tl.load(at + channel[None, :], mask=there[:, None] & in_latent, other=0.0)
        k_rest = tl.load(at + latent + rest[None, :], mask=there[:, None] & in_rest, other=0.0)
        score = tl.dot(q, tl.trans(k), input_precision="ieee")
        score = tl.dot(q_rest, tl.trans(k_rest), score, input_precision="ieee")
        seen = key[None, :] <= position[:, None]
        if SELECTED:
            word = tl.load(selected_at + tile * BLOCK_N // 64, mask=known, other=0)
            seen = seen & (((word[:, None] >> (key % 64).to(tl.int64)[None, :]) & 1) != 0)
        score = tl.where(seen, score, float("-inf"))
        higher = tl.maximum(top, tl.max(score, axis=1))
        weight = tl.exp2(score - higher[:, None])
        fade = tl.exp2(top - higher)
        total = total * fade + tl.sum(weight, axis=1)
        mixed = tl.dot(weight.to(k.dtype), k, mixed * fade[:, None], input_precision="ieee")
        top = higher
    # ---- store
    if DECODE and SPLITS > 1:
        cell = (token.to(tl.int64) * H + head) * SPLITS + split
        tl.store(
            parts_ptr + cell[:, None] * latent + channel[None, :], mixed, mask=known[:, None] & in_latent
        )
        tl.store(tops_ptr + 2 * cell, top, mask=known)
        tl.store(tops_ptr + 2 * cell + 1, total, mask=known)
    elif SPLITS > 1 and splits > 1:
        # as attention's prefill leaves them
        cell = (block * tl.num_programs(1) + tl.program_id(1)) * BLOCK_M + row
        at = parts_ptr + (cell * latent)[:, None] + channel[None, :]
        tl.store(at, mixed, mask=known[:, None] & in_latent)
        tl.store(parts_ptr + cells * latent + cell, top, mask=known)
        tl.store(parts_ptr + cells * (latent + 1) + cell, total, mask=known)
    else:
        y = mixed / tl.where(total > 0.0, total, 1.0)[:, None]
        out_at = out_ptr + (token.to(tl.int64) * out_stride + head * latent)[:, None] + channel[None, :]
        tl.store(out_at, y.to(out_ptr.dtype.element_ty), mask=known[:, None] & in_latent)


@triton.jit
def _merge_kernel(
    # pointers
    parts_ptr, tops_ptr, kv_len_ptr, out_ptr,
    # sizes
    H, latent,
    # strides
    out_stride,
    # meta
    SPLITS: tl.constexpr, SHARE: tl.constexpr, LATENT: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One head of one sequence: softmax over what its splits have found."""
    sequence, head = tl.program_id(1).to(tl.int64), tl.program_id(0)
    length = tl.load(kv_len_ptr + sequence)
    blocks = (length + BLOCK_N - 1) // BLOCK_N
    share = tl.maximum((blocks + SPLITS - 1) // SPLITS, SHARE // BLOCK_N)
    active = tl.maximum((blocks + share - 1) // share, 1)
    channel = tl.arange(0, LATENT)
    cell = (sequence * H + head) * SPLITS
    top, total = LOWEST, 0.0
    mixed = tl.zeros([LATENT], tl.float32)
    for split in range(active):
        other, others = tl.load(tops_ptr + 2 * (cell + split)), tl.load(tops_ptr + 2 * (cell + split) + 1)
        part = tl.load(parts_ptr + (cell + split) * latent + channel, mask=channel < latent, other=0.0)
        higher = tl.maximum(top, other)
        fade, weight = tl.exp2(top - higher), tl.exp2(other - higher)
        total = total * fade + others * weight
        mixed = mixed * fade + part * weight
        top = higher
    y = mixed / tl.where(total > 0.0, total, 1.0)
    out_at = out_ptr + sequence * out_stride + head * latent + channel
    tl.store(out_at, y.to(out_ptr.dtype.element_ty), mask=channel < latent)


@dataclass(frozen=True, slots=True, eq=False)
class LatentWorkspace:
    """What splits leave for the merge, f32: parts [B, H, SPLITS, latent], tops and sums [B, H, SPLITS, 2].

    What shares of a prompt's keys leave lies in ``parts``.
    """

    parts: torch.Tensor
    tops: torch.Tensor

    @property
    def num_bytes(self) -> int:
        """Bytes of both."""
        return 4 * (self.parts.numel() + self.tops.numel())


def _heads_of_block(num_heads: int, rows: int) -> int:
    """Return how many heads of a token share a program."""
    return min(rows, power_of_two(num_heads))


def spread(num_heads: int, pages: torch.Tensor) -> Spread:
    """Return how ``latent_attention_prefill`` wants prompts to be shared out."""
    rows = (F32 if pages.dtype == torch.float32 else PREFILL)[0]
    heads = _heads_of_block(num_heads, rows)
    return Spread(rows // heads, max(1, WANTED_SHARES // ceil_div(num_heads, heads)))


def num_parts(latent: int) -> int:
    """Return how many f32 the programs that share a prompt's keys leave for the merge."""
    return WANTED_SHARES * PREFILL[0] * (latent + 2)


def num_splits(sequences: int, num_heads: int, max_keys: int) -> int:
    """Return how many programs share the keys of a sequence: a power of two, by shapes known on the host."""
    tasks = sequences * ceil_div(num_heads, DECODE[0])
    wanted = min(max(4, WANTED_PROGRAMS // tasks), MAX_SPLITS, ceil_div(max_keys, SPLIT_KEYS))
    return power_of_two(max(1, wanted))


def latent_workspace(
    max_sequences: int, num_heads: int, latent: int, max_keys: int, device: str | torch.device
) -> LatentWorkspace:
    """Return a workspace for up to ``max_sequences`` sequences of up to ``max_keys`` keys."""
    cells = max(n * num_heads * num_splits(n, num_heads, max_keys) for n in range(1, max_sequences + 1))
    sizes = max(cells * latent, num_parts(latent)), cells * 2
    return LatentWorkspace(*(torch.empty(size, dtype=torch.float32, device=device) for size in sizes))


def check(
    q: torch.Tensor, pages: torch.Tensor, num_heads: int, latent: int, selected: torch.Tensor | None
) -> int:
    """Return the channels of a row; raise ValueError unless the arguments fit ``latent_attention``."""
    expect("pages", pages, "float16 float32", ("P", "page_size", "C"))
    channels = int(pages.shape[2])
    check_pages(pages, channels)
    expect("q", q, FLOATS, ("T", num_heads * channels))
    expect_range("latent", latent, latent, 1, min(channels, MAX_LATENT))
    if selected is not None:
        expect("selected", selected, "int64", (q.shape[0], "W"))
    return channels


def latent_attention_decode(
    q: torch.Tensor, pages: torch.Tensor, page_table: torch.Tensor, kv_len: torch.Tensor, num_heads: int,
    latent: int, scale: float, selected: torch.Tensor | None = None, *,
    out: torch.Tensor, workspace: LatentWorkspace | None = None,
) -> torch.Tensor:  # fmt: skip
    """Attend from the last position of each sequence; see latent_attention_ref.

    q           [B, H * C] f32 or bf16, pages [P, page_size, C] f16 or f32, page_table [B, max_pages] i32
    kv_len      [B] i32               0 (padding) gives zeros
    selected    [B, W] i64            bit j of word w: key 64 * w + j takes part; None: all do
    out         [B, H * latent]       f32 or bf16
    workspace                         of latent_workspace for at least B sequences

    Safe under graph capture if ``workspace`` is given. Raises ValueError if a shape or type differs.
    """
    channels = check(q, pages, num_heads, latent, selected)
    sequences, max_pages = page_table.shape
    expect("kv_len", kv_len, "int32", (sequences,))
    expect("out", out, FLOATS, (sequences, num_heads * latent))
    if not sequences:
        return out
    page_size = int(pages.shape[1])
    if workspace is None:
        workspace = latent_workspace(sequences, num_heads, latent, max_pages * page_size, q.device)
    splits = num_splits(sequences, num_heads, max_pages * page_size)
    rows, keys, warps, stages = F32 if pages.dtype == torch.float32 else DECODE
    if workspace.tops.numel() < 2 * sequences * num_heads * splits:
        raise ValueError(f"workspace must hold {sequences} sequences of {splits} splits")
    heads = _heads_of_block(num_heads, rows)
    wide = max(16, power_of_two(latent))
    _latent_attention_kernel[(splits, ceil_div(num_heads, heads), sequences)](
        q, pages, page_table, kv_len, kv_len, kv_len, kv_len, kv_len if selected is None else selected, out,
        workspace.parts, workspace.tops, scale * LOG2_E.value, num_heads, latent, channels, 0,
        q.stride(0), out.stride(0), page_table.stride(0), 0 if selected is None else selected.stride(0),
        DECODE=True, SELECTED=selected is not None, HEADS=heads, SPLITS=splits, SHARE=SPLIT_KEYS,
        PAGE_SIZE=page_size, LATENT=wide, REST=_rest(channels, latent), BLOCK_M=rows, BLOCK_N=keys,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    if splits > 1:
        _merge_kernel[(num_heads, sequences)](
            workspace.parts, workspace.tops, kv_len, out, num_heads, latent, out.stride(0),
            SPLITS=splits, SHARE=SPLIT_KEYS, LATENT=wide, BLOCK_N=keys, num_warps=4,
        )  # fmt: skip
    return out


def latent_attention_prefill(
    q: torch.Tensor, pages: torch.Tensor, page_table: torch.Tensor, q_start: torch.Tensor,
    positions: torch.Tensor, blocks: torch.Tensor, num_heads: int, latent: int, scale: float,
    selected: torch.Tensor | None = None, *, out: torch.Tensor, parts: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Attend from each row that ``blocks`` names; other rows of ``out`` stay as they are.

    q           [T, H * C] f32 or bf16, pages and page_table as for decode
    q_start     [B + 1] i32, positions [T] i32
    blocks      [n, 4] i32            of prefill_blocks for spread(num_heads, pages); negative: padding
    selected    [T, W] i64            as for decode
    out         [T, H * latent]       f32 or bf16
    parts       [num_parts(latent)] f32      what shares leave for their merge; None: no keys are shared

    Safe under graph capture. Raises ValueError if a shape or type differs.
    """
    channels = check(q, pages, num_heads, latent, selected)
    expect("q_start", q_start, "int32", (page_table.shape[0] + 1,))
    expect("positions", positions, "int32", (q.shape[0],))
    expect("blocks", blocks, "int32", ("n", 4))
    expect("out", out, FLOATS, (q.shape[0], num_heads * latent))
    if not blocks.shape[0]:
        return out
    rows, keys, warps, stages = F32 if pages.dtype == torch.float32 else PREFILL
    heads, wide = _heads_of_block(num_heads, rows), max(16, power_of_two(latent))
    wanted = num_parts(latent)
    if parts is not None and parts.shape[0] < wanted:
        raise ValueError(f"parts must hold {wanted} values, got {parts.shape[0]}")
    cells = 0 if parts is None else parts.shape[0] // (latent + 2)
    _latent_attention_kernel[(1, ceil_div(num_heads, heads), blocks.shape[0])](
        q, pages, page_table, q_start, q_start, positions, blocks, blocks if selected is None else selected,
        out, q if parts is None else parts, q, scale * LOG2_E.value, num_heads, latent, channels, cells,
        q.stride(0), out.stride(0), page_table.stride(0), 0 if selected is None else selected.stride(0),
        DECODE=False, SELECTED=selected is not None, HEADS=heads, SPLITS=1 if parts is None else 2,
        SHARE=SPLIT_KEYS, PAGE_SIZE=pages.shape[1], LATENT=wide, REST=_rest(channels, latent),
        BLOCK_M=rows, BLOCK_N=keys, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    if parts is not None:
        tasks = ceil_div(num_heads, heads)
        merge_shares(q_start, blocks, None, out, parts, num_heads, heads, latent, rows, tasks)
    return out


def latent_attention(
    q: torch.Tensor, pages: torch.Tensor, page_table: torch.Tensor, q_start: torch.Tensor,
    kv_len: torch.Tensor, positions: torch.Tensor, latent: int, scale: float,
    selected: torch.Tensor | None = None, pool: object = None,
) -> torch.Tensor:  # fmt: skip
    """Attend from each row, all sequences through prefill's kernel; see latent_attention_ref.

    q         [T, H, C] f32 or bf16
    selected  [T, W] i64              the bits of u64, as ``index_select`` gives them

    Waits for the lengths to make its list of blocks, so it is not for graph capture.
    """
    expect("q", q, FLOATS, ("T", "H", "C"))
    tokens, heads, channels = q.shape
    check_pages(pages, channels)
    blocks = prefill_blocks(q_start.cpu().numpy(), kv_len.cpu().numpy(), spread(heads, pages))
    shared = bool((blocks[:, 3] > 1).any())
    out = q.new_empty((tokens, heads, latent))
    latent_attention_prefill(
        q.flatten(1), pages, page_table, q_start, positions, torch.from_numpy(blocks).to(q.device),
        heads, latent, scale, selected, out=out.flatten(1),
        parts=torch.empty(num_parts(latent), device=q.device) if shared else None,
    )  # fmt: skip
    return out


def _rest(channels: int, latent: int) -> int:
    """Return the channels behind the latent, as a tile has them."""
    return max(16, power_of_two(max(1, channels - latent)))
