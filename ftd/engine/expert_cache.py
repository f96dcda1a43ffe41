"""Which experts stay in slots, and where the experts that a step routes to run: policy, integers only.

    slot_of  [L·E]    flat id -> slot, or NOWHERE          flat id = row · E + e, as in FTW
    owner_of [R]      slot -> flat id, or NOWHERE          slot_of[owner_of[slot]] == slot
    last_use [R]      access at which the slot was used last; BESIDE + access while only filled beside it
    score    [L·E]    uses of an expert, each worth half after ``half_life`` steps

One slot pool serves all layers. An access is one layer of one step. Its ids, over all tokens of the batch,
are made unique; those in slots are hits; of the m misses the ``quota`` with the highest scores are filled,
the others run on the CPU, and at most ``warm`` of these are filled beside the step. Victims are the coldest
slots that the access does not use:

    lru       coldest = used longest ago; every fill takes a victim; misses on the CPU change nothing
    decayed   coldest = lowest score; a fill takes its victim only if its score is higher, else it runs from
              a transient slot (numbers R, R + 1, …) and changes nothing; a miss on the CPU whose score beats
              its victim's is filled off the critical path (``warm``): it is a hit from the next step on

With ``decayed`` a layer may also be looked ahead to: of the experts that the layer before expects it to
choose the first that is in no slot is copied there meanwhile, if it would be hotter than its victim. If the
layer chooses it, it is a hit that is ``coming``. Slots that are filled beside a step are no victims before it
ends, or before they are used: fills need not wait for these copies.

Ties go to the lower id and the lower slot. Everything is exact, so that a kernel can be compared bit for bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ftd.errors import InvalidOption

Policy = Literal["lru", "decayed"]
POLICIES: tuple[Policy, ...] = ("lru", "decayed")
NOWHERE = -1
# Where topics change (``ftd.engine.locality``; slots for 37 % of the experts) 8, 16 and 32 steps miss 16.7,
# 21.4 and 27.6 %, LRU 16.7 %; on a recorded trace, whose experts are hot for longer, 20.9, 19.9 and 19.5 %,
# LRU 26.9 %. Fewer than 8 are worse there and no better here.
HALF_LIFE_STEPS = 8
MAX_HALF_LIFE_STEPS = 1 << 16
FRACTION_BITS = 16
BESIDE = 1 << 48  # more accesses than there will be
EPOCH_HALF_LIVES = 24

Ids = NDArray[np.int64]


class Clock:
    """The weight of a use now: it doubles every ``half_life`` steps, which is how older ones lose half.

    ``weights``, of the ages within one half-life, are round(2^(16 + age / half_life)); at an age of 24
    half-lives ``advance`` returns 24, by which all scores are to be shifted right, and begins again. So
    the sum of all weights stays below 2^(16 + 24 + 1) · 2^16 / ln 2 < 2^58.
    """

    def __init__(self, half_life_steps: int) -> None:
        if not 1 <= half_life_steps <= MAX_HALF_LIFE_STEPS:
            raise InvalidOption(
                f"half-life is not between 1 and {MAX_HALF_LIFE_STEPS} steps: {half_life_steps}"
            )
        self.weights = tuple(
            round(2 ** (FRACTION_BITS + age / half_life_steps)) for age in range(half_life_steps)
        )
        self._age = 0

    @property
    def weight(self) -> int:
        """What one use adds to a score in this step."""
        half_lives, rest = divmod(self._age, len(self.weights))
        return self.weights[rest] << half_lives

    def advance(self) -> int:
        """Begin the next step; return how many bits to shift every score right."""
        self._age += 1
        if self._age < EPOCH_HALF_LIVES * len(self.weights):
            return 0
        self._age = 0
        return EPOCH_HALF_LIVES


@dataclass(frozen=True, slots=True)
class Access:
    """What one layer of one step does; pairs are (flat id, slot).

    ids    unique, ascending
    slots  of each id, where it runs: < R resident, >= R transient, NOWHERE on the CPU
    fills  copies that the step waits for, the highest score first
    warm   copies off the critical path, of experts that run on the CPU this time
    coming hits whose copies may still be under way
    """

    ids: tuple[int, ...]
    slots: tuple[int, ...]
    num_hits: int
    fills: tuple[tuple[int, int], ...] = ()
    warm: tuple[tuple[int, int], ...] = ()
    coming: tuple[tuple[int, int], ...] = ()

    @property
    def num_misses(self) -> int:
        """Experts that were in no slot."""
        return len(self.ids) - self.num_hits


@dataclass(slots=True)
class Counters:
    """Sums over accesses; ``uses`` counts unique experts of a layer and step: hits + misses."""

    uses: int = 0
    hits: int = 0
    fills: int = 0  # into a slot, waited for
    transient_fills: int = 0  # waited for, residency unchanged
    warm_fills: int = 0  # off the critical path
    on_cpu: int = 0
    ahead_fills: int = 0  # begun a layer before the one that is expected to need them

    @property
    def miss_rate(self) -> float:
        """Share of uses that found no slot."""
        return (self.uses - self.hits) / max(self.uses, 1)

    def add(self, access: Access, num_slots: int) -> None:
        """Count one access."""
        transient = sum(slot >= num_slots for _, slot in access.fills)
        self.uses += len(access.ids)
        self.hits += access.num_hits
        self.fills += len(access.fills) - transient
        self.transient_fills += transient
        self.warm_fills += len(access.warm)
        self.on_cpu += access.num_misses - len(access.fills)


@dataclass(slots=True)
class ExpertCache:
    """The residency of all experts of a model. Not thread-safe: one step loop owns it.

    num_experts    L·E, over all layers
    num_slots      R >= 0
    num_transient  slots beside them that keep nothing; a fill that gets no slot runs on the CPU instead
    Between calls ``slot_of`` and ``owner_of`` are inverse to each other.
    """

    num_experts: int
    num_slots: int
    policy: Policy = "decayed"
    num_transient: int = 0
    half_life_steps: int = HALF_LIFE_STEPS
    counters: Counters = field(default_factory=Counters)
    slot_of: Ids = field(init=False)
    owner_of: Ids = field(init=False)
    last_use: Ids = field(init=False)
    score: Ids = field(init=False)
    _clock: Clock = field(init=False)
    _now: int = field(init=False, default=0)
    _begin: int = field(init=False, default=0)  # accesses before this step

    def __post_init__(self) -> None:
        if self.num_experts < 1 or self.num_slots < 0 or self.num_transient < 0:
            raise InvalidOption(
                f"impossible cache: {self.num_experts} experts, {self.num_slots} slots, "
                f"{self.num_transient} transient"
            )
        if self.policy not in POLICIES:
            raise InvalidOption(
                f"policy of experts is unknown: {self.policy}", f"use {' or '.join(POLICIES)}"
            )
        self._clock = Clock(self.half_life_steps)
        self.slot_of = np.full(self.num_experts, NOWHERE, np.int64)
        self.owner_of = np.full(self.num_slots, NOWHERE, np.int64)
        self.last_use = np.full(self.num_slots, NOWHERE, np.int64)
        self.score = np.zeros(self.num_experts, np.int64)

    def advance(self) -> None:
        """Begin the next step."""
        self.score >>= self._clock.advance()
        self._begin = self._now

    def access(
        self, ids: Sequence[int] | Ids, quota: int, warm: int | None = None, owner_end: int | None = None
    ) -> Access:
        """Route one layer of this step to ``ids`` and move residency on; fill at most ``quota`` misses.

        ids: flat ids in any order and number; negative ones are padding rows, which never route.
        warm: at most so many of the others are filled off the critical path; None: all that the policy admits
        owner_end: slots of experts from this flat id on are no victims; None: all are
        """
        unique = np.unique(np.asarray(ids, np.int64))
        unique = unique[unique >= 0]
        assert unique.size == 0 or unique[-1] < self.num_experts, (unique[-1], self.num_experts)
        self._now += 1
        self.score[unique] += self._clock.weight
        slots = self.slot_of[unique]
        is_hit = slots != NOWHERE
        is_coming = is_hit & (self.last_use[slots] > BESIDE + self._begin) if self.num_slots else is_hit
        coming = tuple(zip(unique[is_coming].tolist(), slots[is_coming].tolist(), strict=True))
        self.last_use[slots[is_hit]] = self._now
        misses = unique[~is_hit]
        misses = misses[np.lexsort((misses, -self.score[misses]))]
        num_fills = min(max(quota, 0), len(misses))
        num_warm = len(misses) - num_fills if warm is None else max(warm, 0)
        wanted = num_fills if self.policy == "lru" else min(num_fills + num_warm, len(misses))
        placed: dict[int, int] = {}
        fills: list[tuple[int, int]] = []
        beside: list[tuple[int, int]] = []
        victims = self._victims(wanted, self.num_experts if owner_end is None else owner_end)
        for rank, expert in enumerate(misses.tolist()):
            slot = self._admit(expert, victims[rank]) if rank < len(victims) else NOWHERE
            if rank >= num_fills:
                if slot != NOWHERE:
                    self.last_use[slot] += BESIDE
                    beside.append((expert, slot))
                continue
            if slot == NOWHERE:
                transient = sum(taken >= self.num_slots for _, taken in fills)
                if transient == self.num_transient:
                    continue
                slot = self.num_slots + transient
            placed[expert] = slot
            fills.append((expert, slot))
        where = tuple(
            placed.get(expert, slot) for expert, slot in zip(unique.tolist(), slots.tolist(), strict=True)
        )
        access = Access(
            tuple(unique.tolist()), where, int(np.count_nonzero(is_hit)), tuple(fills), tuple(beside), coming
        )
        self.counters.add(access, self.num_slots)
        return access

    def look_ahead(self, ids: Sequence[int] | Ids) -> tuple[int, int] | None:
        """Give a slot to the first of ``ids`` that is in none, as if it were used now; return both.

        ids: flat ids that the next layer is expected to choose, the likeliest first; negative ones are none.
        None: nothing is to be copied. After the access of the layer before, in the same step.
        """
        expected = np.asarray(ids, np.int64)
        missing = expected[(expected >= 0) & (self.slot_of[expected] == NOWHERE)]
        victims = self._victims(1, self.num_experts)
        if self.policy != "decayed" or not len(missing) or not victims:
            return None
        expert = int(missing[0])
        slot = self._admit(expert, victims[0], self._clock.weight)
        if slot == NOWHERE:
            return None
        self.last_use[slot] += BESIDE
        self.counters.ahead_fills += 1
        return expert, slot

    def _victims(self, count: int, owner_end: int) -> list[int]:
        """Return up to ``count`` slots, coldest first; empty ones first.

        None that this access uses, or that is being filled beside this step.
        """
        if count == 0:
            return []
        if self.policy == "lru":
            cold = self.last_use
        else:
            cold = np.where(self.owner_of == NOWHERE, NOWHERE, self.score[self.owner_of])
        order = np.lexsort((np.arange(self.num_slots), cold))
        used = self.last_use[order]
        is_free = (used != self._now) & (used <= BESIDE + self._begin)
        free = order[is_free & (self.owner_of[order] < owner_end)]
        return [int(slot) for slot in free[:count]]

    def _admit(self, expert: int, slot: int, more: int = 0) -> int:
        """Give ``slot`` to ``expert``, whose score counts so much more, if the policy lets it, and return it.

        Else NOWHERE.
        """
        owner = int(self.owner_of[slot])
        if owner != NOWHERE:
            if self.policy == "decayed" and self.score[expert] + more <= self.score[owner]:
                return NOWHERE
            self.slot_of[owner] = NOWHERE
        self.owner_of[slot] = expert
        self.slot_of[expert] = slot
        self.last_use[slot] = self._now
        return slot

    def check(self) -> None:
        """Assert that the two tables are inverse to each other and that no score ran over."""
        held = np.flatnonzero(self.slot_of != NOWHERE)
        assert np.array_equal(self.owner_of[self.slot_of[held]], held), "an expert's slot is another's"
        assert np.count_nonzero(self.owner_of != NOWHERE) == len(held), (
            "a slot has an owner that lies elsewhere"
        )
        assert bool((self.score >= 0).all()), "a score ran over"
        assert self.counters.uses == self.counters.hits + self.counters.fills + (
            self.counters.transient_fills + self.counters.on_cpu
        ), self.counters
