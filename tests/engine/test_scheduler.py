"""Checked against a slow model of the network: a token's K and V is a number made of all tokens before it.

The fake engine writes and reads those numbers through the step's arrays only, so a page with two owners, a
stale prefix or a wrong index shows as a wrong number; the text of every sequence must equal what it is
alone, without a cache.
"""

from array import array

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from ftd.engine.pages import PagePool
from ftd.engine.prefix_cache import PrefixCache
from ftd.engine.scheduler import Scheduler
from ftd.engine.sequence import Sequence, Status
from ftd.errors import InvalidRequest, PromptTooLong
from tests.engine.scheduling import (
    PROMPTS,
    Engine,
    alone,
    alone_shifting,
    check_texts,
    make_plan,
    mix,
    sample,
    workloads,
)


@settings(max_examples=examples(150))
@given(workloads())
def test_every_sequence_gets_the_text_it_gets_alone(workload) -> None:  # type: ignore[no-untyped-def]
    check_texts(Engine(workload[0]), workload)


SHIFTING = st.tuples(PROMPTS, st.integers(1, 70), st.integers(0, 25), st.integers(0, 25))


@settings(max_examples=examples(100))
@given(workloads(), st.lists(SHIFTING, min_size=1, max_size=5))
def test_a_full_window_makes_room_and_the_text_goes_on(workload, requests) -> None:  # type: ignore[no-untyped-def]
    """CTX: each text is what a fresh prompt of the ids that are left would give, beside others and aborts."""
    plan, others, _ = workload
    engine = Engine(plan)
    windows = [max(min(w or 20, plan.context_tokens), len(prompt) + 1) for prompt, _, _, w in requests]
    for i, (prompt, max_tokens, num_keep, _) in enumerate(requests):
        engine.add(i, prompt, max_tokens, stop_id=-1, num_keep=num_keep, window=windows[i])
    for i, (prompt, max_tokens, salt) in enumerate(others, len(requests)):
        engine.add(i, prompt, max_tokens, salt)
    for _ in range(9):
        engine.step()
    engine.scheduler.abort(len(requests))
    engine.settle()
    engine.run()
    for i, (prompt, max_tokens, num_keep, _) in enumerate(requests):
        output, shifted = alone_shifting(prompt, max_tokens, windows[i], num_keep)
        sequence = engine.finished[i]
        assert (engine.emitted[i], sequence.finish_reason) == (output, "length")
        assert (sequence.num_shifted, sequence.output_len) == (shifted, max_tokens)
    for i, (prompt, max_tokens, _) in enumerate(others[1:], len(requests) + 1):
        assert engine.emitted[i] == alone(prompt, max_tokens, plan.context_tokens)[0]
    assert engine.pool.num_live == 0 and engine.cache.num_locked == 0


@settings(max_examples=examples(30))
@given(workloads())
def test_the_same_requests_give_the_same_batches(workload) -> None:  # type: ignore[no-untyped-def]
    plan, requests, _ = workload

    def trace() -> list[list[tuple[int, int, int]]]:
        engine, steps = Engine(plan), []
        for i, (prompt, max_tokens, salt) in enumerate(requests):
            engine.add(i, prompt, max_tokens, salt)
        while (batch := engine.scheduler.schedule()) is not None:
            steps.append([(e.sequence.request_id, e.start, e.num_tokens) for e in batch.entries])
            engine.scheduler.advance(batch, engine.forward(batch))
        return steps

    assert trace() == trace()


@pytest.mark.parametrize("length", range(1, 41))
def test_a_warm_prompt_gives_the_same_text_and_runs_at_least_one_token(length: int) -> None:
    plan = make_plan(page_size=8, num_pages=32, context=64, chunk=16)
    engine = Engine(plan)
    prompt = [position * position % 3 for position in range(length)]
    cold, warm = engine.add(0, prompt, 8), None
    engine.run()
    before = engine.scheduler.prefill_tokens
    warm = engine.add(1, prompt, 8)
    engine.run()
    assert engine.emitted[1] == engine.emitted[0] == alone(prompt, 8, 64)[0]
    assert (cold.cached_len, warm.cached_len) == (0, (length - 1) // 8 * 8)
    assert engine.scheduler.prefill_tokens - before == length - warm.cached_len >= 1


def test_an_edit_in_the_middle_reuses_what_comes_before_it() -> None:
    engine = Engine(make_plan(page_size=4, num_pages=32, context=40, chunk=40))
    first = [0, 1] * 10
    engine.add(0, first, 1)
    engine.run()
    edited = engine.add(1, [*first[:10], 3, *first[11:]], 5)
    engine.run()
    assert edited.cached_len == 8
    assert engine.emitted[1] == alone(list(edited.ids[:20]), 5, 40)[0]


def test_decode_goes_on_while_a_long_prompt_runs_in_chunks() -> None:
    engine = Engine(make_plan(page_size=4, num_pages=60, context=100, chunk=5))
    talker = engine.add(0, [0], 40)
    engine.step()
    reader = engine.add(1, [1] * 80, 1)
    while reader.is_prefill and Status.FINISHED not in (reader.status, talker.status):
        before = talker.output_len
        engine.step()
        assert talker.output_len > before or talker.status is Status.FINISHED
    engine.run()
    assert engine.emitted[1] == alone([1] * 80, 1, 100)[0]


def test_a_second_prompt_behind_a_long_one_reuses_its_pages() -> None:
    engine = Engine(make_plan(page_size=4, num_pages=60, context=100, chunk=10))
    prompt = [0, 1, 2, 3, 0] * 10
    first, second = engine.add(0, prompt, 3), engine.add(1, [*prompt, 1], 3)
    engine.run()
    assert (first.cached_len, second.cached_len) == (0, 48)


def test_first_come_first_served() -> None:
    engine = Engine(make_plan(max_sequences=2, num_pages=20))
    sequences = [engine.add(i, [i % 2] * 9, 4) for i in range(5)]
    started: list[int] = []
    while engine.step():
        started += [s.request_id for s in sequences if s.computed_len and s.request_id not in started]
    assert started == sorted(started)


def test_the_youngest_is_preempted_and_finishes_later() -> None:
    # 6 pages of 2; each needs 6 pages in the end, so both never fit together
    engine = Engine(make_plan(page_size=2, num_pages=6, context=12, max_sequences=2, chunk=8))
    old, young = (engine.add(i, prompt, stop_id=-1) for i, prompt in enumerate(([0, 0, 1], [1, 0])))
    outputs = [alone([0, 0, 1], 0, 12, -1)[0], alone([1, 0], 0, 12, -1)[0]]
    engine.run()
    assert [engine.emitted[0], engine.emitted[1]] == outputs
    assert old.num_preemptions == 0 and young.num_preemptions >= 1
    assert young.cached_len == 0


def test_nobody_is_preempted_while_the_prefix_cache_has_pages_to_give() -> None:
    engine = Engine(make_plan(page_size=2, num_pages=14, context=12, max_sequences=2, chunk=8))
    for i in range(3):
        engine.add(i, [i] * 9, 1, stop_id=-1)
        engine.run()
    assert engine.pool.num_free < 4
    both = [engine.add(10 + i, [3 + i] * 5, 7, stop_id=-1) for i in range(2)]
    engine.run()
    assert [s.num_preemptions for s in both] == [0, 0]


def test_a_prompt_is_admitted_in_the_step_in_which_another_sequence_takes_a_page() -> None:
    engine = Engine(make_plan(page_size=2, num_pages=12, context=12, max_sequences=2, chunk=8))
    old = engine.add(0, [0, 1], stop_id=-1)
    engine.step()
    assert (old.num_tokens, len(old.pages)) == (3, 1)
    young = engine.add(1, [1, 0], stop_id=-1)
    batch = engine.scheduler.schedule()
    assert batch is not None and [entry.sequence for entry in batch.entries] == [old, young]
    assert len(old.pages) == 2


def test_a_prompt_waits_until_it_fits_beside_what_runs() -> None:
    # the first takes 4 of 6 pages at once and soon a fifth, for which the second (2 pages) would be preempted
    engine = Engine(make_plan(page_size=2, num_pages=6, context=12, max_sequences=2, chunk=8))
    first, second = engine.add(0, [0] * 7, 4, stop_id=-1), engine.add(1, [1] * 4, 4, stop_id=-1)
    engine.run()
    assert (first.num_preemptions, second.num_preemptions) == (0, 0)


def test_cached_len_is_that_of_the_first_admission() -> None:
    engine = Engine(make_plan(page_size=2, num_pages=9, context=12, max_sequences=2, chunk=8))
    young = [engine.add(i, [i], 11, stop_id=-1) for i in range(2)][1]
    engine.run()
    assert young.num_preemptions >= 1 and young.cached_len == 0
    assert engine.scheduler.cached_tokens == 0
    assert young.output_len == 11


def test_prompt_and_output_end_with_length_at_the_window() -> None:
    engine = Engine(make_plan(context=20, page_size=3))
    sequence = engine.add(0, [0], 100, stop_id=-1)
    engine.run()
    assert (engine.emitted[0], sequence.finish_reason) == (alone([0], 100, 20, -1)[0], "length")
    assert sequence.num_tokens == 20


def test_a_prompt_that_leaves_no_room_for_a_token_is_refused_with_both_numbers() -> None:
    engine = Engine(make_plan(context=20))
    with pytest.raises(PromptTooLong, match="20 tokens, context window 20"):
        engine.add(0, [0] * 20)
    assert not engine.scheduler.has_work


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no tokens"):
        Engine(make_plan()).add(0, [])


def test_abort_during_a_step_takes_effect_when_it_advances() -> None:
    engine = Engine(make_plan())
    sequence = engine.add(0, [0, 1, 0], 5)
    batch = engine.scheduler.schedule()
    assert batch is not None
    assert engine.scheduler.abort(0) and engine.scheduler.abort(0)
    assert engine.scheduler.take_finished() == []
    assert engine.scheduler.advance(batch, engine.forward(batch)) == []
    engine.settle()
    assert engine.finished == {0: sequence} and sequence.finish_reason == "abort"
    assert not engine.scheduler.abort(0)
    assert engine.cache.match(array("i", [0, 1])).cached_len == 2, "what was computed is kept"


def test_abort_of_a_waiting_sequence_is_immediate() -> None:
    engine = Engine(make_plan(max_sequences=1))
    engine.add(0, [0, 1, 0], 5)
    engine.add(1, [0, 1, 0], 5)
    engine.step()
    assert engine.scheduler.abort(1)
    engine.settle()
    assert engine.finished[1].finish_reason == "abort" and engine.emitted[1] == []


def test_a_dropped_step_runs_again() -> None:
    engine = Engine(make_plan())
    engine.add(0, [0, 1, 0, 1, 1], 5)
    engine.add(1, [0], 5)
    engine.step()
    batch = engine.scheduler.schedule()
    assert batch is not None
    engine.scheduler.abort(1)
    engine.scheduler.drop(batch)
    engine.settle()
    assert 1 in engine.finished
    engine.run()
    assert engine.emitted[0] == alone([0, 1, 0, 1, 1], 5, 20)[0]


def test_an_embedding_runs_its_whole_prompt_and_leaves_nothing() -> None:
    engine = Engine(make_plan(chunk=6, page_size=2))
    engine.add(0, [0, 1] * 7, 1)
    engine.run()
    in_tree = engine.pool.num_tree
    sequence = Sequence.from_prompt(1, [0, 1] * 10, is_embedding=True)
    engine.scheduler.add(sequence)
    positions: list[int] = []
    while (batch := engine.scheduler.schedule()) is not None:
        assert batch.sampled_sequences == []
        positions += batch.fill(engine.arrays).positions.tolist()
        assert engine.scheduler.advance(batch, []) == []
        engine.settle()
    assert positions == list(range(20))
    assert engine.finished[1].finish_reason == "stop" and sequence.cached_len == 0
    assert engine.pool.num_live == 0 and engine.pool.num_tree <= in_tree


def test_alternating_chats_stay_cached_while_memory_lasts() -> None:
    engine = Engine(make_plan(page_size=4, num_pages=40, context=60, chunk=60))
    chats = {name: [name] * 30 for name in (0, 1)}
    for turn in range(6):
        for name, ids in chats.items():
            sequence = engine.add(2 * turn + name, list(ids), 2)
            engine.run()
            assert turn == 0 or sequence.cached_len >= (len(ids) - 3) // 4 * 4
            ids += [2]


def value_of(ids: list[int]) -> int:
    """K and V of the last of ``ids``."""
    value = 0
    for position, token in enumerate(ids):
        value = mix(value, token, position)
    return value


def test_forced_ids_come_with_the_sampled_one_and_run_in_one_step() -> None:
    engine = Engine(make_plan(num_pages=20))
    sequence = engine.add(0, [0, 1], 10, stop_id=-1)
    engine.add(1, [2], 10, stop_id=-1)
    sequence.forced_ids = (3, 2, 1)
    engine.step()
    assert engine.emitted[0] == [sample(value_of([0, 1])), 3, 2, 1]
    assert (sequence.extend_len, sequence.forced_ids) == (4, ())
    engine.step()
    assert sequence.extend_len == 1 and engine.scheduler.decode_tokens == 5
    engine.run()
    ids = [0, 1, sample(value_of([0, 1])), 3, 2, 1]
    while len(ids) < 12:
        ids.append(sample(value_of(ids)))
    assert engine.emitted[0] == ids[2:]
    assert engine.emitted[1] == alone([2], 10, 20, -1)[0]


@pytest.mark.parametrize(
    ("max_tokens", "window", "is_complete", "count", "reason"),
    [
        (5, 20, False, 5, "length"),
        (4, 20, True, 4, "stop"),
        (3, 20, True, 3, "length"),
        (0, 5, False, 3, "length"),
        (0, 5, True, 3, "length"),
        (0, 6, True, 4, "stop"),
    ],
)
def test_forced_ids_stop_at_the_limit(
    max_tokens: int, window: int, is_complete: bool, count: int, reason: str
) -> None:
    engine = Engine(make_plan(context=window))
    sequence = engine.add(0, [0, 1], max_tokens, stop_id=-1)
    sequence.forced_ids, sequence.is_complete = (3, 2, 1), is_complete
    engine.step()
    if is_complete or count < 5:
        assert sequence.finish_reason == reason
    engine.run()
    assert (len(engine.emitted[0]), sequence.finish_reason) == (count, reason)


def test_stop_id_has_no_forced_ids_behind_it() -> None:
    engine = Engine(make_plan())
    sequence = engine.add(0, [0, 1], 10, stop_id=sample(value_of([0, 1])))
    sequence.forced_ids = (3,)
    engine.step()
    assert (engine.emitted[0], sequence.finish_reason) == ([], "stop")


def test_whole_prompts_run_in_one_step_or_wait() -> None:
    plan = make_plan(num_pages=40, max_sequences=3, context=8, chunk=8, whole=True)
    pool = PagePool(plan.num_pages)
    scheduler = Scheduler(plan, pool, PrefixCache(pool, plan.page_size))
    lengths = (5, 4, 3, 8, 1, 1)
    for number, length in enumerate(lengths):
        scheduler.add(Sequence.from_prompt(number, [1] * length, is_embedding=True))
    steps = []
    while (batch := scheduler.schedule()) is not None:
        assert all(
            entry.start == 0 and entry.num_tokens == entry.sequence.prompt_len for entry in batch.entries
        )
        steps.append([entry.num_tokens for entry in batch.entries])
        scheduler.advance(batch, [])
        scheduler.check()
    # 5 and 4 exceed 8 together; who came first is never overtaken
    assert steps == [[5], [4, 3], [8], [1, 1]]
    assert pool.num_free == plan.num_pages
