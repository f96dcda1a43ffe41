"""Slots of recurrent states: by hand, against a slow model, and under the scheduler.

Under the scheduler a sequence's state is the number that its last token's K and V is, so each step can check
that the state it reads is that of exactly the ids before it; a state that is stale, of another sequence or
of another length shows as a wrong number.
"""

from dataclasses import dataclass, field

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ftd.engine.batch import Batch, StepArrays
from ftd.engine.pages import PagePool
from ftd.engine.plan import Plan
from ftd.engine.prefix_cache import PrefixCache
from ftd.engine.scheduler import Scheduler
from ftd.engine.sequence import Sequence
from ftd.engine.slots import PROMPT_TAIL, StateSlots
from tests.engine.scheduling import (
    PROMPTS,
    Engine,
    alone,
    alone_shifting,
    check_texts,
    make_plan,
    workloads,
)

NUM_SLOTS = 5


class SlotsMachine(RuleBasedStateMachine):
    """Contents follow the copies; a page's state must be what its sequence had when it was kept."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = [-1] * NUM_SLOTS
        self.slots = StateSlots(NUM_SLOTS, 2, self.copy)
        self.live: dict[int, int] = {}  # slot -> content
        self.kept: dict[int, int] = {}  # page -> content, least recently used first
        self.time = 0

    def copy(self, source: int, target: int) -> None:
        assert source != target
        self.memory[target] = self.memory[source]

    def room(self) -> bool:
        return len(self.live) < NUM_SLOTS

    @precondition(room)
    @rule()
    def begin_from_zeros(self) -> None:
        self.forget_the_oldest()
        slot = self.slots.begin([])
        assert slot not in self.live
        self.memory[slot] = self.live[slot] = 0

    @precondition(lambda self: self.room() and self.kept)
    @rule(data=st.data())
    def begin_after_a_page(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(self.kept)))
        content = self.kept.pop(page)
        is_last = len(self.live) + len(self.kept) + 1 == NUM_SLOTS and not self.kept
        self.forget_the_oldest(beside=1)
        slot = self.slots.begin([77, page])
        assert slot not in self.live and self.memory[slot] == content
        self.live[slot] = content
        if not is_last:
            self.kept[page] = content

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.live)))
        self.time += 1
        self.memory[slot] = self.live[slot] = self.time

    @precondition(lambda self: self.live)
    @rule(data=st.data(), page=st.integers(0, 6))
    def keep(self, data: st.DataObject, page: int) -> None:
        slot = data.draw(st.sampled_from(sorted(self.live)))
        if page in self.kept:
            return
        fits = bool(self.kept) or self.room()
        self.forget_the_oldest()
        assert self.slots.keep(page, slot) == fits
        if fits:
            self.kept[page] = self.live[slot]

    @precondition(lambda self: self.live and self.kept)
    @rule(data=st.data())
    def keep_again(self, data: st.DataObject) -> None:
        """A page has one meaning, the same ids and the same state: it is only used once more."""
        page = data.draw(st.sampled_from(sorted(self.kept)))
        self.kept[page] = self.kept.pop(page)
        assert self.slots.keep(page, next(iter(self.live)))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.live)))
        del self.live[slot]
        self.slots.end(slot)

    @rule(page=st.integers(0, 6))
    def drop(self, page: int) -> None:
        self.kept.pop(page, None)
        self.slots.drop(page)

    @rule(pages=st.lists(st.integers(0, 6), max_size=5))
    def usable(self, pages: list[int]) -> None:
        expected = max((i + 1 for i, page in enumerate(pages) if page in self.kept), default=0)
        assert self.slots.usable(pages) == expected

    def forget_the_oldest(self, beside: int = 0) -> None:
        """What must go, if anything, for one more slot."""
        if len(self.live) + len(self.kept) + beside == NUM_SLOTS and self.kept:
            del self.kept[next(iter(self.kept))]

    @invariant()
    def accounts_agree(self) -> None:
        self.slots.check()
        assert self.slots.kept_pages() == list(self.kept)
        assert (self.slots.num_live, self.slots.num_kept) == (len(self.live), len(self.kept))
        assert self.slots.num_free == NUM_SLOTS - len(self.live) - len(self.kept)
        assert all(self.memory[slot] == content for slot, content in self.live.items())
        assert [self.memory[self.slots._kept[page]] for page in self.kept] == list(self.kept.values())


SlotsMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30)
TestSlots = SlotsMachine.TestCase


@dataclass
class RecurrentEngine(Engine):
    """The fake engine of the scheduler's tests with a state for each sequence."""

    num_slots: int = 8
    computed: list[int] = field(default_factory=list)  # length of every chunk of a prompt

    def __post_init__(self) -> None:
        self.states = np.full(self.num_slots, -1, np.int64)
        self.slots = StateSlots(self.num_slots, self.plan.page_size, self.copy)
        self.pool = PagePool(self.plan.num_pages)
        self.cache = PrefixCache(self.pool, self.plan.page_size, self.slots.drop)
        self.scheduler = Scheduler(self.plan, self.pool, self.cache, self.slots)
        self.arrays = StepArrays(self.plan)
        self.kv = np.full(self.plan.num_pages * self.plan.page_size, -1, np.int64)

    def copy(self, source: int, target: int) -> None:
        self.states[target] = self.states[source]

    def forward(self, batch: Batch) -> list[int]:
        """Check each sequence's state before the step, compute, leave the state of after the step."""
        step = batch.fill(self.arrays)
        size = self.plan.page_size
        assert len(set(step.state_index.tolist())) == batch.num_sequences, "two sequences share a state"
        for b, slot in enumerate(step.state_index.tolist()):
            position = int(step.positions[step.q_start[b]])
            if position:
                place = step.page_table[b, (position - 1) // size] * size + (position - 1) % size
                assert self.states[slot] == self.kv[place], "the state is not that of the ids before"
        sampled = super().forward(batch)
        for b, slot in enumerate(step.state_index.tolist()):
            self.states[slot] = self.kv[step.kv_index[step.q_start[b + 1] - 1]]
        self.computed += [entry.num_tokens for entry in batch.entries if entry.sequence.is_prefill]
        return sampled


@settings(max_examples=examples(100))
@given(workloads(), st.integers(0, 6))
def test_every_sequence_gets_the_text_it_gets_alone(workload, spare) -> None:  # type: ignore[no-untyped-def]
    plan = workload[0]
    engine = RecurrentEngine(plan, num_slots=plan.max_sequences + spare)

    def fail_at_times(step: int) -> None:
        if step % 7 == 3 and (batch := engine.scheduler.schedule()) is not None:
            engine.forward(batch)  # the states move on, and the step fails
            engine.scheduler.drop(batch)

    check_texts(engine, workload, fail_at_times)
    assert engine.slots.num_live == 0
    assert engine.slots.num_free == engine.num_slots, "a state outlived its page"


SHIFTING = st.tuples(PROMPTS, st.integers(1, 70), st.integers(0, 25))


@settings(max_examples=examples(60))
@given(workloads(), st.lists(SHIFTING, min_size=1, max_size=4), st.integers(0, 6))
def test_a_full_window_makes_room_and_the_text_goes_on(workload, requests, spare) -> None:  # type: ignore[no-untyped-def]
    plan, others, _ = workload
    engine = RecurrentEngine(plan, num_slots=plan.max_sequences + spare)
    for i, (prompt, max_tokens, num_keep) in enumerate(requests):
        engine.add(i, prompt, max_tokens, stop_id=-1, num_keep=num_keep)
    for i, (prompt, max_tokens, salt) in enumerate(others, len(requests)):
        engine.add(i, prompt, max_tokens, salt)
    engine.run()
    for i, (prompt, max_tokens, num_keep) in enumerate(requests):
        assert engine.emitted[i] == alone_shifting(prompt, max_tokens, plan.context_tokens, num_keep)[0]
    for i, (prompt, max_tokens, _) in enumerate(others, len(requests)):
        assert engine.emitted[i] == alone(prompt, max_tokens, plan.context_tokens)[0]
    assert engine.slots.num_live == 0


def test_an_old_prompt_takes_the_pages_of_a_young_decode_that_is_in_the_batch() -> None:
    """After its shift the first prompt runs again, before the third, which decodes by then; checked against
    each of them alone."""
    plan = make_plan(page_size=1, num_pages=33, context=20, chunk=9)
    engine = RecurrentEngine(plan, num_slots=3)
    engine.add(0, [0] * 14, 7, stop_id=-1, num_keep=0)
    engine.add(1, [0] * 10, 0, "a")
    engine.add(2, [1, 0], 0)
    engine.run()
    assert engine.emitted[0] == alone_shifting([0] * 14, 7, 20, 0)[0]
    assert engine.emitted[1] == alone([0] * 10, 0, 20)[0]
    assert engine.emitted[2] == alone([1, 0], 0, 20)[0]


def plan_of(page_size: int = 4) -> Plan:
    return make_plan(page_size=page_size, num_pages=400 // page_size, context=200, chunk=64)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return [int(value) for value in np.random.default_rng(seed).integers(0, 4, length)]


@pytest.mark.parametrize("length", [1, 7, 8, 9, 11, 12, 13, 63, 64, 65, 100, 150])
def test_the_same_prompt_again_runs_its_last_page_and_tail_alone(length: int) -> None:
    engine = RecurrentEngine(plan_of())
    cold = engine.add(0, prompt_of(length), 3)
    engine.run()
    warm = engine.add(1, prompt_of(length), 3)
    engine.run()
    assert engine.emitted[1] == engine.emitted[0]
    assert cold.cached_len == 0
    assert warm.cached_len == max(length - PROMPT_TAIL, 0) // 4 * 4


def test_the_next_turn_goes_on_where_the_output_filled_a_page() -> None:
    engine = RecurrentEngine(plan_of())
    prompt = prompt_of(30)
    engine.add(0, prompt, 21, stop_id=-1)
    engine.run()
    turn = engine.add(1, prompt + engine.emitted[0] + [0, 1, 2], 2)
    engine.run()
    # 51 ids, the last of them not computed: 48 are whole pages
    assert turn.cached_len == 48
    # of the output the last state alone is kept, beside that near the end of each prompt
    assert engine.slots.num_kept <= 4


def test_a_turn_without_what_was_thought_reuses_the_prompt() -> None:
    engine = RecurrentEngine(plan_of())
    prompt = prompt_of(41)
    engine.add(0, prompt, 30, stop_id=-1)
    engine.run()
    turn = engine.add(1, [*prompt[:38], 0, 0, 0, 1, 1, 2], 2)
    engine.run()
    assert turn.cached_len == 32


def test_where_two_prompts_part_the_third_goes_on() -> None:
    engine = RecurrentEngine(plan_of())
    system = prompt_of(50, seed=1)
    cached = []
    for i in range(3):
        sequence = engine.add(i, system + prompt_of(30, seed=2 + i), 2)
        engine.run()
        cached.append(sequence.cached_len)
    assert cached[:2] == [0, 0] and 48 <= cached[2] < 56


def test_an_interrupted_prompt_goes_on_where_it_was() -> None:
    engine = RecurrentEngine(plan_of())
    prompt = prompt_of(190)
    engine.add(0, prompt, 3)
    engine.step()
    engine.step()
    engine.scheduler.abort(0)
    engine.settle()
    again = engine.add(1, prompt, 3)
    engine.run()
    assert again.cached_len == 128
    assert engine.emitted[1] == alone(prompt, 3, 200)[0]


def test_a_step_that_failed_leaves_no_state_behind() -> None:
    engine = RecurrentEngine(plan_of())
    prompt = prompt_of(190)
    sequence = engine.add(0, prompt, 3)
    engine.step()
    batch = engine.scheduler.schedule()
    assert batch is not None
    engine.forward(batch)
    engine.scheduler.abort(0)
    engine.scheduler.drop(batch)
    engine.settle()
    assert sequence.finish_reason == "abort" and engine.slots.num_kept == 0


def test_states_go_with_their_pages() -> None:
    engine = RecurrentEngine(plan_of())
    engine.add(0, prompt_of(60), 2)
    engine.run()
    assert engine.slots.num_kept == 1
    engine.cache.clear()
    assert engine.slots.num_kept == 0
    again = engine.add(1, prompt_of(60), 2)
    engine.run()
    assert again.cached_len == 0


def test_an_embedding_has_a_slot_and_keeps_nothing() -> None:
    engine = RecurrentEngine(plan_of())
    engine.scheduler.add(Sequence.from_prompt(0, prompt_of(90), is_embedding=True))
    while (batch := engine.scheduler.schedule()) is not None:
        engine.forward(batch)
        engine.scheduler.advance(batch, [])
        engine.settle()
    assert (engine.slots.num_live, engine.slots.num_kept) == (0, 0)


def test_a_model_without_states_has_no_slots() -> None:
    assert StateSlots.over(None, plan_of()) is None
