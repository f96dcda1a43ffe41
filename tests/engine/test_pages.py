"""Checked against a slow model: three sets of page numbers."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ftd.engine.pages import Owner, PagePool

NUM_PAGES = 7


class PagePoolMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(NUM_PAGES)
        self.free = set(range(NUM_PAGES))
        self.live: set[int] = set()
        self.tree: set[int] = set()

    @rule(data=st.data())
    def allocate(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, len(self.free)))
        pages = self.pool.allocate(count)
        assert len(pages) == count and set(pages) <= self.free
        self.free -= set(pages)
        self.live |= set(pages)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free_some(self, data: st.DataObject) -> None:
        pages = data.draw(st.sets(st.sampled_from(sorted(self.live))))
        self.pool.free(pages)
        self.live -= pages
        self.free |= pages

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def give_to_tree(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(self.live)))
        self.pool.give_to_tree(page)
        self.live.remove(page)
        self.tree.add(page)

    @precondition(lambda self: self.tree)
    @rule(data=st.data())
    def take_from_tree(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(self.tree)))
        self.pool.take_from_tree(page)
        self.tree.remove(page)
        self.free.add(page)

    @invariant()
    def owners_agree_with_the_sets(self) -> None:
        self.pool.check()
        assert (self.pool.num_free, self.pool.num_live, self.pool.num_tree) == tuple(
            map(len, (self.free, self.live, self.tree))
        )
        for owner, pages in ((Owner.FREE, self.free), (Owner.LIVE, self.live), (Owner.TREE, self.tree)):
            assert {page for page in range(NUM_PAGES) if self.pool.owner(page) is owner} == pages


TestPagePool = PagePoolMachine.TestCase


def test_allocating_more_than_is_free_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        PagePool(2).allocate(3)


def test_a_page_cannot_be_freed_twice() -> None:
    pool = PagePool(2)
    (page,) = pool.allocate(1)
    pool.free([page])
    with pytest.raises(AssertionError, match=f"page {page} is FREE, not LIVE"):
        pool.free([page])


def test_a_page_of_the_tree_cannot_be_freed_by_a_sequence() -> None:
    pool = PagePool(2)
    (page,) = pool.allocate(1)
    pool.give_to_tree(page)
    with pytest.raises(AssertionError, match=f"page {page} is TREE, not LIVE"):
        pool.free([page])


def test_check_finds_a_page_that_is_free_twice() -> None:
    pool = PagePool(2)
    pool._free[0] = pool._free[1]
    with pytest.raises(AssertionError, match="free twice"):
        pool.check()
