"""The residency policies against a slow model: dicts, exact fractions for scores, one rule at a time."""

from fractions import Fraction

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from ftd.engine import expert_cache
from ftd.engine.expert_cache import NOWHERE, Clock, Counters, ExpertCache, Policy
from ftd.errors import InvalidOption

NUM_EXPERTS = 12
IDS = st.lists(st.integers(-1, NUM_EXPERTS - 1), max_size=8)
ACCESSES = st.lists(st.tuples(IDS, st.integers(0, 5), st.none() | IDS, st.booleans()), max_size=60)


class SlowCache:
    """The rules of the module's docstring, word by word."""

    def __init__(self, num_slots: int, policy: Policy, num_transient: int, half_life: int) -> None:
        self.num_slots, self.policy, self.num_transient = num_slots, policy, num_transient
        self.clock = Clock(half_life)
        self.slots: dict[int, int] = {}
        self.used: dict[int, int] = {}
        self.scores = dict.fromkeys(range(NUM_EXPERTS), 0)
        self.now = 0
        self.being_filled: set[int] = set()
        self.coming: dict[int, int] = {}

    def cold(self, slot: int) -> int:
        owner = next((expert for expert, held in self.slots.items() if held == slot), None)
        if owner is None:
            return -1
        return self.used[slot] if self.policy == "lru" else self.scores[owner]

    def access(self, ids: list[int], quota: int) -> tuple[dict[int, int], list[tuple[int, int]], set[int]]:
        """Return where each id runs, the fills in order, and the experts that are resident afterwards."""
        self.now += 1
        unique = sorted({expert for expert in ids if expert >= 0})
        for expert in unique:
            self.scores[expert] += self.clock.weight
        where = {expert: self.slots.get(expert, NOWHERE) for expert in unique}
        busy = {slot for slot in where.values() if slot != NOWHERE}
        for slot in busy:
            self.used[slot] = self.now
        self.coming = {e: where[e] for e in unique if where[e] in self.being_filled}
        self.being_filled -= busy  # their copies are awaited
        misses = sorted(
            (e for e in unique if where[e] == NOWHERE), key=lambda expert: (-self.scores[expert], expert)
        )
        victims = sorted(
            set(range(self.num_slots)) - busy - self.being_filled,
            key=lambda slot: (self.cold(slot), slot),
        )
        fills: list[tuple[int, int]] = []
        for rank, expert in enumerate(misses):
            filled = rank < quota
            slot = NOWHERE
            if victims and (filled or self.policy == "decayed"):
                cold = self.cold(victims[0])
                if cold == -1 or self.policy == "lru" or self.scores[expert] > cold:
                    slot = victims.pop(0)
                    for other in [e for e, held in self.slots.items() if held == slot]:
                        del self.slots[other]
                    self.slots[expert], self.used[slot] = slot, self.now
                    if not filled:
                        self.being_filled.add(slot)
            if filled and slot == NOWHERE:
                transient = sum(place >= self.num_slots for _, place in fills)
                if transient < self.num_transient:
                    slot = self.num_slots + transient
            if filled and slot != NOWHERE:
                where[expert] = slot
                fills.append((expert, slot))
        return where, fills, set(self.slots)

    def look_ahead(self, ids: list[int]) -> tuple[int, int] | None:
        """Return which expert gets which slot ahead of its use."""
        missing = [e for e in ids if e >= 0 and e not in self.slots]
        busy = {slot for slot, used in self.used.items() if used == self.now} | self.being_filled
        free = sorted(set(range(self.num_slots)) - busy, key=lambda slot: (self.cold(slot), slot))
        if self.policy == "lru" or not missing or not free:
            return None
        expert, slot = missing[0], free[0]
        owner = next((other for other, held in self.slots.items() if held == slot), None)
        if owner is not None:
            if self.scores[expert] + self.clock.weight <= self.scores[owner]:
                return None
            del self.slots[owner]
        self.slots[expert], self.used[slot] = slot, self.now
        self.being_filled.add(slot)
        return expert, slot

    def advance(self) -> None:
        shift = self.clock.advance()
        self.scores = {expert: score >> shift for expert, score in self.scores.items()}
        self.being_filled = set()


@settings(max_examples=examples(150))
@given(
    accesses=ACCESSES,
    num_slots=st.integers(0, NUM_EXPERTS + 1),
    policy=st.sampled_from(expert_cache.POLICIES),
    num_transient=st.integers(0, 3),
    half_life=st.sampled_from([1, 2, 7]),
)
def test_every_access_follows_the_rules(
    accesses: list[tuple[list[int], int, list[int] | None, bool]],
    num_slots: int,
    policy: Policy,
    num_transient: int,
    half_life: int,
) -> None:
    cache = ExpertCache(NUM_EXPERTS, num_slots, policy, num_transient, half_life)
    model = SlowCache(num_slots, policy, num_transient, half_life)
    for ids, quota, expected, new_step in accesses:
        got = cache.access(ids, quota)
        where, fills, resident = model.access(ids, quota)
        assert dict(zip(got.ids, got.slots, strict=True)) == where
        assert list(got.fills) == fills
        assert dict(got.coming) == model.coming
        assert set(np.flatnonzero(cache.slot_of != NOWHERE).tolist()) == resident
        # No two experts of an access share a slot; what is only warmed runs on the CPU this time.
        taken = [slot for slot in got.slots if slot != NOWHERE] + [slot for _, slot in got.warm]
        assert len(set(taken)) == len(taken)
        assert all(where[expert] == NOWHERE for expert, _ in got.warm)
        if expected is not None:
            assert cache.look_ahead(expected) == model.look_ahead(expected)
        if new_step:
            cache.advance()
            model.advance()
        cache.check()
    assert cache.score.tolist() == [model.scores[expert] for expert in range(NUM_EXPERTS)]


@pytest.mark.parametrize("half_life", [1, 2, 32, 65536])
def test_a_use_is_worth_half_after_a_half_life(half_life: int) -> None:
    clock = Clock(half_life)
    first = clock.weight
    for _ in range(half_life):
        assert clock.advance() == 0
    assert Fraction(clock.weight, first) == 2


def test_scores_survive_a_new_epoch_and_never_run_over() -> None:
    cache = ExpertCache(4, 2, "decayed", half_life_steps=1)
    for step in range(1000):
        cache.access([0] if step % 2 else [0, 1], 2)
        cache.advance()
        cache.check()
        assert step < 10 or cache.score[0] > cache.score[1] > 0
    assert cache.score.max() < 1 << 58


def test_the_largest_half_life_stays_below_63_bits() -> None:
    half_life = expert_cache.MAX_HALF_LIFE_STEPS
    weights = [round(2 ** (expert_cache.FRACTION_BITS + age / half_life)) for age in range(half_life)]
    # All uses of all epochs so far, as if none had been shifted away.
    assert 2 * sum(weights) << expert_cache.EPOCH_HALF_LIVES < 1 << 63


def test_a_cold_expert_runs_from_a_transient_slot() -> None:
    cache = ExpertCache(8, 1, "decayed", num_transient=1)
    for _ in range(3):
        assert cache.access([5], 1).slots in ((0,),)
        cache.advance()
    access = cache.access([2, 3], 2)
    assert (access.slots, access.fills, access.warm) == ((1, NOWHERE), ((2, 1),), ())
    assert cache.slot_of[5] == 0
    assert cache.counters == Counters(uses=5, hits=2, fills=1, transient_fills=1, on_cpu=1)


def test_a_miss_on_the_cpu_warms_the_cache_if_its_score_is_high() -> None:
    cache = ExpertCache(8, 1, "decayed")
    assert cache.access([5], 0).warm == ((5, 0),)
    assert cache.access([5], 0).num_hits == 1
    assert cache.counters.miss_rate == 0.5


def test_an_expert_that_is_looked_ahead_to_is_a_hit_that_is_coming() -> None:
    cache = ExpertCache(8, 2, "decayed")
    cache.access([0, 1], 2)
    assert cache.look_ahead([4, 5]) is None, "both slots are in use"
    cache.advance()
    cache.access([1], 0)
    assert cache.look_ahead([4, 5]) == (4, 0)
    assert cache.look_ahead([5]) is None, "slots that are being filled are no victims"
    access = cache.access([4], 0)
    assert (access.num_hits, access.coming, access.num_misses) == (1, ((4, 0),), 0)
    cache.advance()
    assert cache.access([4], 0).coming == ()
    assert cache.counters == Counters(uses=5, hits=3, fills=2, ahead_fills=1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"num_experts": 0, "num_slots": 1}, "impossible cache"),
        ({"num_experts": 1, "num_slots": -1}, "impossible cache"),
        ({"num_experts": 1, "num_slots": 1, "policy": "fifo"}, "policy of experts is unknown: fifo"),
        ({"num_experts": 1, "num_slots": 1, "half_life_steps": 0}, "half-life"),
    ],
)
def test_impossible_caches_are_refused(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        ExpertCache(**arguments)  # type: ignore[arg-type]
