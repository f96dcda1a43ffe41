"""What a sequence holds, counted by hand. Workloads: test_scheduler, test_slots."""

from array import array

import pytest

from ftd.engine.holdings import Holdings
from ftd.engine.pages import PagePool
from ftd.engine.prefix_cache import PrefixCache
from ftd.engine.sequence import Sequence, Status
from tests.engine.scheduling import make_plan


@pytest.fixture
def pool() -> PagePool:
    return PagePool(8)


@pytest.fixture
def holdings(pool: PagePool) -> Holdings:
    return Holdings(make_plan(page_size=4, num_pages=8, context=24), pool, PrefixCache(pool, 4), None)


def begun(holdings: Holdings, request_id: int, ids: list[int]) -> Sequence:
    sequence = Sequence(request_id=request_id, ids=array("i", ids), prompt_len=len(ids))
    assert holdings.begin(sequence, 0)
    sequence.status = Status.RUNNING
    holdings.reserve(sequence, sequence.extend_len)
    sequence.computed_len = len(ids)
    return sequence


def test_the_second_prompt_stands_on_the_whole_pages_of_the_first(holdings: Holdings, pool: PagePool) -> None:
    first = begun(holdings, 1, list(range(10)))
    assert (len(first.pages), pool.num_free) == (3, 5)
    holdings.share(first)
    second = begun(holdings, 2, [*range(8), 70, 71])
    assert second.pages[:2] == first.pages[:2] and second.num_shared_pages == 2
    assert pool.num_free == 4
    holdings.check([first, second])


def test_a_cached_prompt_still_runs_its_last_id(holdings: Holdings) -> None:
    holdings.share(begun(holdings, 1, list(range(8))))
    second = Sequence(request_id=2, ids=array("i", range(8)), prompt_len=8)
    assert holdings.begin(second, 0)
    assert second.computed_len == 4


def test_what_does_not_fit_changes_nothing(holdings: Holdings, pool: PagePool) -> None:
    first = begun(holdings, 1, list(range(20)))
    late = Sequence(request_id=2, ids=array("i", range(100, 116)), prompt_len=16)
    assert not holdings.begin(late, 0)
    assert late.node is None and not late.pages and pool.num_free == 3
    assert not holdings.begin(Sequence(request_id=3, ids=array("i", [9]), prompt_len=1), 3)
    holdings.check([first])


def test_the_end_leaves_whole_pages_to_the_cache_and_frees_the_rest(
    holdings: Holdings, pool: PagePool
) -> None:
    first = begun(holdings, 1, list(range(10)))
    holdings.end(first)
    assert pool.num_free == 6 and first.node is None and not first.pages
    holdings.check([])
    assert holdings.evict(8) == 2 and holdings.num_free == 8


def test_check_finds_a_sequence_that_was_forgotten(holdings: Holdings) -> None:
    first = begun(holdings, 1, list(range(10)))
    with pytest.raises(AssertionError):
        holdings.check([])
    holdings.check([first])
