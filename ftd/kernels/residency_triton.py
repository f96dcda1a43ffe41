"""Residency on a GPU: which experts of a layer's step lie in slots, which are fetched, which the CPU runs.

The program that decides also sends the CPU its share, so that it begins first.

``ftd.engine.expert_cache.ExpertCache`` is the definition: both agree in every integer. One program does an
access: one layer of one step. Everything dynamic is data (``residency_state``), so that captured graphs serve
every step.
"""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ftd.kernels import interpreter  # noqa: F401  loops up to computed bounds need it
from ftd.kernels.early_triton import early
from ftd.kernels.expert_mailbox_triton import send
from ftd.kernels.expert_split import NUM_SIZES
from ftd.kernels.residency_state import BESIDE, MAX_SLOTS, Message, Placement, Residency, size_of
from ftd.kernels.shapes import expect, expect_range, power_of_two

MAX_PAIRS = 1024
# So many pairs are compared each with each in registers; of more, those of an expert meet in memory.
_FEW_PAIRS = tl.constexpr(64)
_MISSES_AT_ONCE = tl.constexpr(32)

_BESIDE = tl.constexpr(BESIDE)
NEVER = tl.constexpr(2**63 - 1)  # the key of a slot that cannot be a victim


@triton.jit
def slots_by_heat(
    owner_of, last_use, score, now, begin, owner_end, R, LRU: tl.constexpr, SLOTS: tl.constexpr
):
    """Return all slots, whose they are, and how hot; NEVER where nobody may take one.

    begin: accesses before this step.
    """
    slot = tl.arange(0, SLOTS)
    known = slot < R
    owner = tl.load(owner_of + slot, mask=known, other=-1)
    used = tl.load(last_use + slot, mask=known, other=0)
    key = used
    if not LRU:
        key = tl.load(score + owner, mask=owner >= 0, other=-1)
    is_free = (used != now) & (used <= _BESIDE + begin)
    return slot, owner, tl.where(known & is_free & (owner < owner_end), key, NEVER)


@triton.jit
def coldest_slot(slot, owner, key):
    """Return the lowest key, the lowest slot that has it, and whose it is."""
    coldest = tl.min(key, axis=0)
    # Both in one number
    found = tl.min(tl.where(key == coldest, (slot.to(tl.int64) << 32) + owner + 1, NEVER), axis=0)
    return coldest, (found >> 32).to(tl.int32), (found & 0xFFFFFFFF).to(tl.int32) - 1


@triton.jit
def _victims(
    owner_of, last_use, score, slot_of, now, begin, share, wanted, is_miss, rank, flat, its_score, R,
    owner_end,
    LRU: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """Give slots to misses in the order of rank as long as the policy lets it; return each pair's or -1.

    begin: accesses before this step; from rank ``share`` on slots are filled beside the step.
    """
    slot, owner, key = slots_by_heat(owner_of, last_use, score, now, begin, owner_end, R, LRU, SLOTS)
    placed = tl.full(rank.shape, -1, tl.int32)
    turn = wanted * 0
    while turn < wanted:
        coldest, victim, old = coldest_slot(slot, owner, key)
        is_turn = is_miss & (rank == turn)
        admitted = coldest != NEVER
        if not LRU:
            hotter = tl.max(tl.where(is_turn, its_score, -1), axis=0) > coldest
            admitted = admitted & ((old < 0) | hotter)
        # All pairs of the expert store the same
        victims = tl.full(flat.shape, 0, tl.int32) + victim
        tl.store(slot_of + old, -1, mask=admitted & (old >= 0))
        tl.store(slot_of + flat, victims, mask=is_turn & admitted)
        tl.store(owner_of + victims, flat, mask=is_turn & admitted)
        tl.store(last_use + victim, tl.where(turn < share, now, now + _BESIDE), mask=admitted)
        placed = tl.where(is_turn & admitted, victim, placed)
        key = tl.where(slot == victim, NEVER, key)
        # Later misses are colder and later victims hotter: the first refusal is followed by others only.
        turn = tl.where(admitted, turn + 1, wanted)
    return placed


@triton.jit
def _is_first(local, routed, pair, seen, PAIRS: tl.constexpr):
    """Return one pair of each expert."""
    if PAIRS <= _FEW_PAIRS:
        same = (local[:, None] == local[None, :]) & routed[None, :]
        return routed & (tl.min(tl.where(same, pair[None, :], PAIRS), axis=1) == pair)
    else:
        tl.store(seen + local, pair, mask=routed)
        tl.debug_barrier()  # whichever came last is the one
        return routed & (tl.load(seen + local, mask=routed, other=-1) == pair)


@triton.jit
def _ranks(flat, its_score, is_unique, num_misses, score, misses, PAIRS: tl.constexpr):
    """Return how many misses go before each pair: of a higher score, or the same and a lower id.

    is_unique: one pair of each miss; their scores are stored. misses [T*K, 2] is overwritten.
    """
    if PAIRS <= _FEW_PAIRS:
        ahead = its_score[None, :] > its_score[:, None]
        ahead = ahead | ((its_score[None, :] == its_score[:, None]) & (flat[None, :] < flat[:, None]))
        return tl.sum((ahead & is_unique[None, :]).to(tl.int32), axis=1)
    else:
        tl.store(misses + 2 * (tl.cumsum(is_unique.to(tl.int32), axis=0) - 1), flat, mask=is_unique)
        tl.debug_barrier()
        rank = tl.full(flat.shape, 0, tl.int32)
        for first in range(0, num_misses, _MISSES_AT_ONCE):
            place = first + tl.arange(0, _MISSES_AT_ONCE)
            other = tl.load(misses + 2 * place, mask=place < num_misses, other=0)
            other_score = tl.load(score + other, mask=place < num_misses, other=-1)
            ahead = other_score[None, :] > its_score[:, None]
            ahead = ahead | ((other_score[None, :] == its_score[:, None]) & (other[None, :] < flat[:, None]))
            rank += tl.sum(ahead.to(tl.int32), axis=1)
        tl.debug_barrier()  # the list is read before it becomes another
        return rank


@triton.jit(do_not_specialize=["T", "first_flat", "owner_end", "size", "row"])
def _residency(
    # pointers
    ids, slot_of, owner_of, last_use, score, clock, quota, counters,
    hits, fills, fill_slots, on_cpu, fetch, warm, counts, seen,
    x, weights, sent, words, to_on_cpu, to_weights, to_x,
    # sizes
    T, K, R, first_flat, owner_end, num_transient, num_quota, size, num_sizes, D, row,
    # strides
    ids_stride, x_stride, weights_stride,
    # meta
    LRU: tl.constexpr, PAIRS: tl.constexpr, SLOTS: tl.constexpr, SENDS: tl.constexpr, TOKENS: tl.constexpr,
    WARMS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One access; outputs have K columns without gaps. ``words`` and ``to_*`` are addresses."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    # ---- each pair's expert, unique
    pair = tl.arange(0, PAIRS)
    inside = pair < T * K
    local = tl.load(ids + pair // K * ids_stride + pair % K, mask=inside, other=-1)
    routed = local >= 0
    flat = tl.where(routed, local + first_flat, 0)
    is_first = _is_first(local, routed, pair, seen, PAIRS)
    # ---- stamp
    now = tl.load(clock + 1) + 1
    its_score = tl.load(score + flat, mask=routed, other=0) + tl.load(clock)
    slot = tl.load(slot_of + flat, mask=routed, other=-1)
    begin = tl.load(clock + 3)
    is_hit, is_miss = routed & (slot >= 0), routed & (slot < 0)
    is_coming = is_hit & (tl.load(last_use + slot, mask=is_hit, other=0) > _BESIDE + begin)
    tl.debug_barrier()  # all pairs of an expert have read its score and when its slot was used
    tl.store(score + flat, its_score, mask=is_first)
    tl.store(last_use + slot, now, mask=is_first & is_hit)
    tl.store(clock + 1, now)
    num_unique = tl.sum(is_first.to(tl.int32), axis=0)
    num_misses = tl.sum((is_first & is_miss).to(tl.int32), axis=0)
    # ---- misses by score, and slots for them
    rank = tl.full((PAIRS,), PAIRS, tl.int32)
    placed = tl.full((PAIRS,), -1, tl.int32)
    share = num_misses * 0
    if num_misses > 0:
        tl.debug_barrier()  # scores are stored, and what hits stamped is no victim
        rank = _ranks(flat, its_score, is_first & is_miss, num_misses, score, fetch, PAIRS)
        rank = tl.where(is_miss, rank, PAIRS)
        its_quota = quota + size * num_quota + tl.minimum(num_misses, num_quota - 1)
        share = tl.minimum(tl.maximum(tl.load(its_quota), 0), num_misses)
        wanted = share
        if WARMS:
            beside = tl.maximum(tl.load(its_quota + num_sizes * num_quota), 0)
            wanted = tl.minimum(share + beside, num_misses)
        if SENDS:  # noqa: SIM102  known to the compiler
            # Before slots are looked for: whoever is fetched gets one that keeps nothing if no other
            if share < num_misses:
                send(
                    x, tl.where(is_miss & (rank >= share), local, -1), weights,
                    sent, words, to_on_cpu, to_weights, to_x,
                    pair, T, K, D, row, x_stride, weights_stride, TOKENS,
                )  # fmt: skip
        placed = _victims(
            owner_of, last_use, score, slot_of, now, begin, share, wanted, is_miss, rank, flat,
            its_score, R, owner_end, LRU, SLOTS,
        )  # fmt: skip
    admitted = tl.sum((is_first & (placed >= 0)).to(tl.int32), axis=0)
    spare = rank - admitted
    place = tl.where(placed >= 0, placed, tl.where(spare < num_transient, R + spare, -1))
    place = tl.where(is_miss & (rank < share), place, -1)
    is_warm = is_miss & (rank >= share) & (placed >= 0)
    num_fetched = tl.sum((is_first & (place >= 0)).to(tl.int32), axis=0)
    # ---- store
    is_copied = (place >= 0) | is_coming
    tl.store(hits + pair, tl.where(is_hit & (is_coming == 0), local, -1), mask=inside)
    tl.store(fills + pair, tl.where(is_copied, local, -1), mask=inside)
    tl.store(fill_slots + local, tl.where(is_coming, slot, place), mask=is_first & is_copied)
    tl.store(on_cpu + pair, tl.where(is_miss & (place < 0), local, -1), mask=inside)
    tl.store(fetch + 2 * rank, flat, mask=is_first & (place >= 0))
    tl.store(fetch + 2 * rank + 1, place, mask=is_first & (place >= 0))
    tl.store(warm + 2 * (rank - share), flat, mask=is_first & is_warm)
    tl.store(warm + 2 * (rank - share) + 1, placed, mask=is_first & is_warm)
    num_transient_used = tl.sum((is_first & (place >= R)).to(tl.int32), axis=0)
    num_warm = tl.sum((is_first & is_warm).to(tl.int32), axis=0)
    tl.store(counts, num_fetched)
    tl.store(counts + 1, num_warm)
    tl.store(counts + 2, num_misses - num_fetched)
    tl.store(counters, tl.load(counters) + num_unique)
    tl.store(counters + 1, tl.load(counters + 1) + num_unique - num_misses)
    tl.store(counters + 2, tl.load(counters + 2) + num_fetched - num_transient_used)
    tl.store(counters + 3, tl.load(counters + 3) + num_transient_used)
    tl.store(counters + 4, tl.load(counters + 4) + num_warm)
    tl.store(counters + 5, tl.load(counters + 5) + num_misses - num_fetched)


@triton.jit
def _advance(clock, weights, score, num_experts, half_life, EPOCH: tl.constexpr, BLOCK: tl.constexpr):
    tl.store(clock + 3, tl.load(clock + 1))
    age = tl.load(clock + 2) + 1
    if age >= EPOCH * half_life:
        age = age * 0
        for first in range(0, num_experts, BLOCK):
            expert = first + tl.arange(0, BLOCK)
            old = tl.load(score + expert, mask=expert < num_experts, other=0)
            tl.store(score + expert, old >> EPOCH, mask=expert < num_experts)
    tl.store(clock + 2, age)
    tl.store(clock, tl.load(weights + age % half_life) << (age // half_life))


def advance(state: Residency, epoch_half_lives: int) -> None:
    """Begin the next step, as ``ExpertCache.advance``. Safe under capture."""
    _advance[(1,)](
        state.clock,
        state.weights,
        state.score,
        state.score.shape[0],
        state.weights.shape[0],
        EPOCH=epoch_half_lives,
        BLOCK=1024,
    )


def access(
    state: Residency,
    ids: torch.Tensor,
    first_flat: int,
    placement: Placement,
    policy: str = "decayed",
    num_transient: int = 0,
    owner_end: int | None = None,
    message: Message | None = None,
    warms: bool = True,
) -> None:
    """Place the experts that one layer's step routes to and move residency on. Safe under capture.

    ids         [T, K] i32   of the layer's router; -1 in padding rows
    first_flat  flat id of the layer's expert 0
    placement   of T tokens is written
    owner_end   slots of experts from this flat id on are no victims; None: all are
    message     goes to the CPU if it runs any of them; then there must be transient slots for all experts
    warms       whether others than the quota says may be filled beside the step
    """
    tokens, chosen = ids.shape
    expect("ids", ids, "int32", ("T", "K"))
    expect("placement", placement.hits, "int32", (tokens, chosen))
    expect_range("pairs", tokens * chosen, tokens * chosen, 1, MAX_PAIRS)
    if policy not in ("lru", "decayed"):
        raise ValueError(f"policy must be one of lru decayed, got {policy}")
    pairs = power_of_two(tokens * chosen)
    slots = power_of_two(max(state.num_slots, 1))
    # 32 comparisons or 16 keys a thread
    warps = max(4, min(32, max(pairs // 16, slots // 512)))
    sending: tuple[object, ...] = (None,) * 7
    if message is not None:
        message.expect(tokens, chosen)
        least = min(tokens * chosen, placement.slot_of.shape[0])
        expect_range("transient slots", num_transient, num_transient, least, MAX_SLOTS)
        sending = (message.x, message.weights, *message.mailbox.addresses())
    _residency[(1,)](
        ids, state.slot_of, state.owner_of, state.last_use, state.score, state.clock, state.quota,
        state.counters, placement.hits, placement.fills, placement.slot_of, placement.on_cpu,
        placement.fetch, placement.warm, placement.counts, placement.seen, *sending,
        tokens, chosen, state.num_slots, first_flat,
        state.score.shape[0] if owner_end is None else owner_end, num_transient, state.quota.shape[2],
        size_of(tokens), NUM_SIZES,
        0 if message is None else message.x.shape[1], 0 if message is None else message.row,
        ids.stride(0), 0 if message is None else message.x.stride(0),
        0 if message is None else message.weights.stride(0),
        LRU=policy == "lru", PAIRS=pairs, SLOTS=slots, SENDS=message is not None,
        TOKENS=power_of_two(tokens), WARMS=warms and policy != "lru", num_warps=warps, **early(ids),
    )  # fmt: skip
