"""Looking ahead on a GPU: an expert that a layer will miss is copied while the layer before computes.

    router of layer l   also chooses by the next layer's weights: what that is expected to need
    look_ahead          beside the step, behind layer l's residency: an expert, and a slot for it
    fill                copies it, and layer l + 1 waits for it before it computes what it copies itself

``ftd.engine.expert_cache.ExpertCache.look_ahead`` is the definition; both agree in every integer. Nothing is
copied beside a layer that is too short to hide it: the next one would wait, whether it needs it or not. It
takes the place of what the next layer would copy for later of its own misses. A kernel that looks whether the
copy has arrived cannot wait instead: nothing promises that the copy has begun.

Of two small trained models (37 % of the experts in slots) the next layer's router finds 65 and 73 % of the
misses in what the layer before knows, and 45 and 63 % of the misses that it names come true; what the token
before chose finds 3 and 4 %. Two layers ahead it finds 56 and 66 %. The norm of the layer before does as well
as the next one's own, and the router's order is better than the order of scores.
"""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl

from ftd.kernels import interpreter  # noqa: F401  loops up to computed bounds need it
from ftd.kernels.residency_state import AHEAD, BESIDE, Placement, Residency
from ftd.kernels.residency_triton import NEVER, coldest_slot, slots_by_heat
from ftd.kernels.shapes import expect, expect_range, power_of_two

# Of more nothing is gained: they need more experts than can be copied meanwhile
MAX_PAIRS = 64
_AHEAD, _BESIDE = tl.constexpr(AHEAD), tl.constexpr(BESIDE)


@triton.jit(do_not_specialize=["T", "first_flat"])
def _look_ahead(
    # pointers
    ids, slot_of, owner_of, last_use, score, clock, counters, counts, least, row, count,
    # sizes
    T, K, R, first_flat,
    # strides
    ids_stride,
    # meta
    PAIRS: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    # ---- the likeliest expert that is in no slot
    pair = tl.arange(0, PAIRS)
    local = tl.load(ids + pair // K * ids_stride + pair % K, mask=pair < T * K, other=-1)
    flat = tl.where(local >= 0, local + first_flat, 0)
    is_missing = (local >= 0) & (tl.load(slot_of + flat) < 0)
    order = tl.where(is_missing, pair % K * T + pair // K, PAIRS)
    best = tl.min(order, axis=0)
    expert = tl.max(tl.where(order == best, flat, 0), axis=0)
    # ---- the coldest slot that nobody needs
    now = tl.load(clock + 1)
    slot, owner, key = slots_by_heat(
        owner_of, last_use, score, now, tl.load(clock + 3), 0x7FFFFFFF, R, False, SLOTS
    )
    coldest, victim, old = coldest_slot(slot, owner, key)
    # ---- store
    is_long = tl.load(counts) + tl.load(counts + 2) >= tl.load(least)
    is_hotter = (old < 0) | (tl.load(score + expert) + tl.load(clock) > coldest)
    begins = is_long & (best < PAIRS) & (coldest != NEVER) & is_hotter
    tl.store(slot_of + old, -1, mask=begins & (old >= 0))
    tl.store(slot_of + expert, victim, mask=begins)
    tl.store(owner_of + victim, expert, mask=begins)
    tl.store(last_use + victim, now + _BESIDE, mask=begins)
    tl.store(row, expert, mask=begins)
    tl.store(row + 1, victim, mask=begins)
    tl.store(count, begins.to(tl.int32))
    tl.store(counters + _AHEAD, tl.load(counters + _AHEAD) + begins.to(tl.int64))


def look_ahead(
    state: Residency,
    ids: torch.Tensor,
    first_flat: int,
    placement: Placement,
    least: torch.Tensor,
    row: torch.Tensor,
    count: torch.Tensor,
) -> None:
    """Choose what is copied for the next layer, behind the access of the one before. Safe under capture.

    ids           [T, K] i32   that the layer is expected to choose, the likeliest first; negative: padding.
                               T * K is at most MAX_PAIRS
    first_flat                 flat id of the layer's expert 0
    placement                  of the layer before
    least         [1] i32      misses, fetched or on the CPU, of a layer that is long enough
    row, count    [1, 2] i32, [1] i32   written: flat id and slot, and 1, or 0 if nothing is copied
    """
    tokens, chosen = ids.shape
    expect("ids", ids, "int32", ("T", "K"))
    expect("least", least, "int32", (1,))
    expect("row", row, "int32", (1, 2))
    expect_range("pairs", tokens * chosen, tokens * chosen, 1, MAX_PAIRS)
    slots = power_of_two(max(state.num_slots, 1))
    _look_ahead[(1,)](
        ids, state.slot_of, state.owner_of, state.last_use, state.score, state.clock, state.counters,
        placement.counts, least, row, count, tokens, chosen, state.num_slots, first_flat, ids.stride(0),
        PAIRS=power_of_two(tokens * chosen), SLOTS=slots, num_warps=max(4, min(32, slots // 512)),
    )  # fmt: skip
