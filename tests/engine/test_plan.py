"""Plans, checked against arithmetic done by hand and against properties over many sizes."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ftd.engine.plan import MemoryNeeds, Plan, make, num_pages_for, streaming_chunk_tokens
from ftd.errors import InvalidOption, OutOfMemory

NEEDS = MemoryNeeds(
    weight_bytes=1000,
    kv_bytes_per_token=10,
    workspace_bytes=100,
    workspace_bytes_per_token=1,
    max_context_tokens=1024,
)


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (31, 1), (32, 1), (33, 2), (4096, 128)])
def test_pages_for_tokens(tokens: int, pages: int) -> None:
    assert num_pages_for(tokens, 32) == pages


def test_enough_memory_gives_every_sequence_a_window() -> None:
    plan = make(NEEDS, free_bytes=10**9, context_tokens=100, max_sequences=3, prefill_chunk_tokens=64)
    assert plan == Plan(
        page_size=32,
        num_pages=12,
        max_sequences=3,
        context_tokens=100,
        prefill_chunk_tokens=64,
        weight_bytes=1000,
        kv_bytes=12 * 320,
        workspace_bytes=100 + 64 + 3,
    )
    assert (plan.max_step_tokens, plan.max_pages_per_sequence, plan.total_bytes) == (67, 4, 5007)


def test_less_memory_gives_fewer_pages_but_a_whole_window() -> None:
    # 1000 weights + 100 + 64 + 3 workspace leave 1793 bytes: five pages of 320
    plan = make(NEEDS, free_bytes=2960, context_tokens=100, max_sequences=3, prefill_chunk_tokens=64)
    assert (plan.num_pages, plan.max_sequences, plan.context_tokens) == (5, 3, 100)


def test_automatic_sequences_are_as_many_windows_as_fit() -> None:
    plan = make(NEEDS, free_bytes=1200 + 9 * 320, context_tokens=100, prefill_chunk_tokens=64)
    assert (plan.max_sequences, plan.num_pages) == (2, 8)


def test_a_window_longer_than_the_model_is_cut() -> None:
    assert make(NEEDS, free_bytes=10**9, context_tokens=10**6).context_tokens == 1024


def test_a_chunk_is_never_longer_than_the_window() -> None:
    assert make(NEEDS, free_bytes=10**9, context_tokens=100).prefill_chunk_tokens == 100


def test_kv_bytes_bounds_the_pool() -> None:
    plan = make(NEEDS, free_bytes=10**9, context_tokens=100, max_sequences=8, kv_bytes=2000)
    assert plan.num_pages == 6 and plan.kv_bytes <= 2000


def test_without_a_wish_the_window_is_what_fits() -> None:
    plan = make(NEEDS, free_bytes=1100 + 64 + 8 + 5 * 320, prefill_chunk_tokens=64)
    assert (plan.context_tokens, plan.max_sequences) == (160, 1)


def test_a_refusal_says_what_is_needed_what_there_is_and_what_would_fit() -> None:
    with pytest.raises(OutOfMemory) as caught:
        make(
            MemoryNeeds(
                weight_bytes=4 * 10**9,
                kv_bytes_per_token=10**6,
                workspace_bytes=0,
                workspace_bytes_per_token=0,
                max_context_tokens=10**5,
            ),
            free_bytes=6 * 10**9,
            context_tokens=8192,
        )
    assert caught.value.message == (
        "not enough memory: needed 12 GB (weights 4 GB, KV of 8192 tokens 8.2 GB, workspace 0 B), "
        "available 6 GB"
    )
    assert caught.value.hint == "set num_ctx to 1984 or less, or free 6.2 GB"


def test_a_model_that_never_fits_is_refused_without_advice_on_the_context() -> None:
    with pytest.raises(OutOfMemory) as caught:
        make(NEEDS, free_bytes=900)
    assert caught.value.hint is not None and caught.value.hint.startswith("no context fits")


def test_a_refusal_for_the_kv_limit_names_it() -> None:
    with pytest.raises(OutOfMemory, match="KV limited to 400 B"):
        make(NEEDS, free_bytes=10**9, context_tokens=100, kv_bytes=400)


@pytest.mark.parametrize("name", ["context_tokens", "max_sequences", "kv_bytes"])
def test_negative_sizes_are_refused(name: str) -> None:
    with pytest.raises(InvalidOption, match=name):
        make(NEEDS, free_bytes=10**9, **{name: -1})


@given(
    needs=st.sampled_from([NEEDS, replace(NEEDS, state_bytes=90), replace(NEEDS, overhead_bytes=700)]),
    free_bytes=st.integers(0, 10**5),
    context_tokens=st.integers(0, 2000),
    max_sequences=st.integers(0, 9),
    kv_bytes=st.one_of(st.just(0), st.integers(0, 10**5)),
    prefill_chunk_tokens=st.integers(1, 600),
    page_size=st.integers(1, 70),
)
def test_a_plan_keeps_its_bounds_or_its_advice_fits(needs: MemoryNeeds, **sizes: int) -> None:
    try:
        plan = make(needs, **sizes)
    except OutOfMemory as exc:
        fits = re.match(r"set num_ctx to (\d+) or less", exc.hint or "")
        if fits:
            smaller = make(needs, **{**sizes, "context_tokens": int(fits[1])})
            assert smaller.context_tokens == int(fits[1]) < (sizes["context_tokens"] or 4096)
            with pytest.raises(OutOfMemory):
                make(needs, **{**sizes, "context_tokens": int(fits[1]) + 1})
        return
    kept = plan.num_pages * plan.page_size * 10 + plan.num_state_slots * needs.state_bytes
    step_tokens = min(sizes["prefill_chunk_tokens"], plan.context_tokens) + plan.max_sequences
    taken = 1000 + kept + 100 + step_tokens + needs.overhead_bytes
    assert plan.total_bytes == taken <= sizes["free_bytes"]
    assert plan.state_bytes == plan.num_state_slots * needs.state_bytes
    assert plan.num_state_slots >= (plan.max_sequences if needs.state_bytes else 0)
    assert not sizes["kv_bytes"] or plan.kv_bytes <= sizes["kv_bytes"]
    assert plan.num_pages >= plan.max_pages_per_sequence >= 1
    assert plan.context_tokens <= NEEDS.max_context_tokens
    assert not sizes["context_tokens"] or plan.context_tokens == min(sizes["context_tokens"], 1024)
    assert plan.max_sequences >= 1 and (
        not sizes["max_sequences"] or plan.max_sequences == sizes["max_sequences"]
    )


def test_whole_prompts_need_a_chunk_as_long_as_the_window() -> None:
    plan = make(NEEDS, free_bytes=10**9, context_tokens=700, max_sequences=2, whole_prompts=True)
    assert plan.whole_prompts and plan.prefill_chunk_tokens == 700
    assert plan.workspace_bytes == 100 + 700 + 2


@pytest.mark.parametrize(("spare_states", "slots"), [(32, 4), (31, 2), (16, 2), (15, 1), (8, 1), (1, 1)])
def test_states_that_are_kept_give_way_to_a_window_then_those_of_sequences(
    spare_states: int, slots: int
) -> None:
    needs = replace(NEEDS, state_bytes=100, workspace_bytes_per_token=0)
    one_window = needs.weight_bytes + needs.workspace_bytes + 64 * needs.kv_bytes_per_token
    plan = make(needs, free_bytes=one_window + 100 * spare_states, context_tokens=64)
    assert (plan.num_state_slots, plan.context_tokens) == (slots * plan.max_sequences, 64)
    assert plan.total_bytes == 1000 + 100 + plan.kv_bytes + 100 * plan.num_state_slots
    with pytest.raises(OutOfMemory, match="states 100 B"):
        make(needs, free_bytes=one_window, context_tokens=64)


def test_a_refusal_names_the_states() -> None:
    needs = replace(NEEDS, state_bytes=10**6)
    with pytest.raises(OutOfMemory, match=r"needed 3 MB .*workspace .*, states 3 MB"):
        make(needs, free_bytes=10**6, context_tokens=64, max_sequences=3)


def test_a_chunk_computes_about_as_long_as_it_streams() -> None:
    gigabyte = 1 << 30
    found = [
        streaming_chunk_tokens(size) for size in (0, 2 * gigabyte, 6 * gigabyte, 10 * gigabyte, 36 * gigabyte)
    ]
    assert found == [1, 2048, 8192, 8192, 16384]
