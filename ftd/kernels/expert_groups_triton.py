"""Which tokens each expert works on: the (token, choice) pairs of a step, grouped by expert on the GPU.

Pair p of T*K is token p // K and its choice p % K. Decode groups without a launch of its own: each program of
``expert_ffn`` looks through the few ids of the step (``decode_group``). Prefill sorts: ``group_pairs`` counts
the pairs of each expert, gives each expert a range of ``order`` and blocks of its own, and places the pairs;
``prefill_group`` reads that. The number of blocks has a fixed bound; those behind the last one used have no
expert. Ids below 0 (padding rows) are in no group.
"""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ftd.kernels.shapes import ceil_div, power_of_two

# Pairs that a program counts or places; small, so that 2,048 tokens occupy the card.
PAIRS_PER_PROGRAM = 128


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Where ``group_pairs`` writes; counts is zero between calls.

    order  [P] i32      pairs, those of an expert together        rank [P] i32  of a pair among its expert's
    starts [E + 1] i32  place in order of each expert's first     ends [E] i32  blocks up to an expert's last
    counts [E] i32
    """

    order: torch.Tensor
    rank: torch.Tensor
    starts: torch.Tensor
    ends: torch.Tensor
    counts: torch.Tensor


def num_blocks(num_pairs: int, num_experts: int, block: int) -> int:
    """Return the most blocks that ``num_pairs`` can take, however they are chosen."""
    partly_full = min(num_pairs, num_experts)
    return partly_full + (num_pairs - partly_full) // block


@triton.jit
def decode_group(
    ids, group, T, K, ids_stride,
    BY_EXPERT: tl.constexpr, TOKENS: tl.constexpr, CHOICES: tl.constexpr,
):  # fmt: skip
    """Return the expert of ``group``, whether it has work here, and its pair of each token or -1 [TOKENS].

    BY_EXPERT: group e is expert e; else group p is pair p, and the first pair of an expert does its work.
    """
    token, choice = tl.arange(0, TOKENS), tl.arange(0, CHOICES)
    inside = (token < T)[:, None] & (choice < K)[None, :]
    chosen = tl.load(ids + token[:, None] * ids_stride + choice[None, :], mask=inside, other=-1)
    pair = token[:, None] * K + choice[None, :]
    expert = group
    if not BY_EXPERT:
        expert = tl.load(ids + group // K * ids_stride + group % K)
    is_its = inside & (chosen == expert)
    first = tl.min(tl.min(tl.where(is_its, pair, 1 << 30), axis=1), axis=0)
    has_work = first < (1 << 30)
    if not BY_EXPERT:
        has_work = (first == group) & (expert >= 0)
    return expert, has_work, tl.max(tl.where(is_its, pair, -1), axis=1)


@triton.jit
def prefill_group(group, order, starts, ends, E, BT: tl.constexpr, EXPERTS: tl.constexpr):
    """Return the expert of block ``group``, whether there is one, and its pairs or -1 [BT]."""
    every = tl.arange(0, EXPERTS)
    last = tl.load(ends + every, mask=every < E, other=1 << 30)
    expert = tl.sum((last <= group).to(tl.int32), axis=0)
    has_work = expert < E
    known = tl.minimum(expert, E - 1)
    before = tl.sum(tl.where(every == known - 1, last, 0), axis=0)
    start, end = tl.load(starts + known), tl.load(starts + known + 1)
    place = start + (group - before) * BT + tl.arange(0, BT)
    return known, has_work, tl.load(order + place, mask=has_work & (place < end), other=-1)


@triton.jit
def _count_pairs(
    # pointers
    ids, rank, counts,
    # sizes
    num_pairs, K,
    # strides
    ids_stride,
    # meta
    BLOCK: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = pair < num_pairs
    expert = tl.load(ids + (pair // K).to(tl.int64) * ids_stride + pair % K, mask=inside, other=-1)
    # The order in an expert's group is not fixed; no result depends on it.
    before = tl.atomic_add(counts + expert, 1, mask=inside & (expert >= 0), sem="relaxed")
    tl.store(rank + pair, before, mask=inside)


@triton.jit
def _place_experts(
    # pointers
    counts, starts, ends, uses,
    # sizes
    E,
    # meta
    BT: tl.constexpr, EXPERTS: tl.constexpr, USES: tl.constexpr,
):  # fmt: skip
    expert = tl.arange(0, EXPERTS)
    inside = expert < E
    count = tl.load(counts + expert, mask=inside, other=0)
    behind = tl.cumsum(count, axis=0)
    tl.store(starts + expert + 1, behind, mask=inside)
    tl.store(starts + expert, behind - count, mask=expert == 0)
    tl.store(ends + expert, tl.cumsum((count + BT - 1) // BT, axis=0), mask=inside)
    tl.store(counts + expert, 0, mask=inside)
    if USES:
        served = tl.load(uses + expert, mask=inside, other=0)
        tl.store(uses + expert, served + count, mask=inside)
        read = tl.sum((count > 0).to(tl.int64), axis=0)
        tl.store(uses + E, tl.load(uses + E) + read)


@triton.jit
def _place_pairs(
    # pointers
    ids, rank, starts, order,
    # sizes
    num_pairs, K,
    # strides
    ids_stride,
    # meta
    BLOCK: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = pair < num_pairs
    expert = tl.load(ids + (pair // K).to(tl.int64) * ids_stride + pair % K, mask=inside, other=-1)
    inside = inside & (expert >= 0)
    place = tl.load(starts + expert, mask=inside, other=0) + tl.load(rank + pair, mask=inside, other=0)
    tl.store(order + place, pair, mask=inside)


def group_pairs(ids: torch.Tensor, groups: Groups, block: int, uses: torch.Tensor | None) -> None:
    """Group the pairs of ``ids`` [T, K] i32 by expert into blocks of ``block``. Safe under capture.

    uses  [E + 1] i64   adds how many tokens each expert serves; last, how many experts are read
    """
    tokens, chosen = ids.shape
    num_experts = groups.counts.shape[0]
    num_pairs = tokens * chosen
    grid = (ceil_div(num_pairs, PAIRS_PER_PROGRAM),)
    _count_pairs[grid](
        ids, groups.rank, groups.counts, num_pairs, chosen, ids.stride(0), BLOCK=PAIRS_PER_PROGRAM
    )
    _place_experts[(1,)](
        groups.counts,
        groups.starts,
        groups.ends,
        uses,
        num_experts,
        BT=block,
        EXPERTS=power_of_two(num_experts),
        USES=uses is not None,
    )
    _place_pairs[grid](
        ids,
        groups.rank,
        groups.starts,
        groups.order,
        num_pairs,
        chosen,
        ids.stride(0),
        BLOCK=PAIRS_PER_PROGRAM,
    )
