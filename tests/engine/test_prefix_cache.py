"""Checked against a slow model: a dict from every cached prefix to its page and the time of its last use."""

from array import array
from typing import NamedTuple

import pytest
from examples import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ftd.engine.pages import PagePool
from ftd.engine.prefix_cache import Node, PrefixCache

PAGE_SIZE = 2
NUM_PAGES = 24
IDS = st.lists(st.integers(0, 1), max_size=11).map(tuple)
SALTS = st.sampled_from(["", "alice"])
Prefix = tuple[str, tuple[int, ...]]


class Held(NamedTuple):
    node: Node
    prefix: Prefix


class PrefixCacheMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(NUM_PAGES)
        self.cache = PrefixCache(self.pool, PAGE_SIZE)
        self.pages: dict[Prefix, int] = {}
        self.last_use: dict[Prefix, int] = {}
        self.held: list[Held] = []
        self.time = 0

    def prefixes(self, ids: tuple[int, ...], salt: str) -> list[Prefix]:
        return [(salt, ids[: n + PAGE_SIZE]) for n in range(0, len(ids) - PAGE_SIZE + 1, PAGE_SIZE)]

    def touch(self, prefixes: list[Prefix]) -> None:
        self.time += 1
        for prefix in prefixes:
            if prefix in self.pages:
                self.last_use[prefix] = self.time

    def locked(self) -> set[Prefix]:
        return {p for held in self.held for p in self.prefixes(held.prefix[1], held.prefix[0])}

    @rule(ids=IDS, salt=SALTS)
    def match_finds_the_longest_cached_prefix(self, ids: tuple[int, ...], salt: str) -> None:
        found = self.cache.match(array("i", ids), salt)
        expected = [p for p in self.prefixes(ids, salt) if p in self.pages]
        assert found.pages == [self.pages[p] for p in expected]
        assert found.cached_len == len(expected) * PAGE_SIZE
        self.touch(expected)

    @rule(ids=IDS, salt=SALTS)
    def match_and_lock(self, ids: tuple[int, ...], salt: str) -> None:
        found = self.cache.match(array("i", ids), salt)
        self.cache.lock(found.node)
        self.touch(self.prefixes(ids, salt))
        self.held.append(Held(found.node, (salt, ids[: found.cached_len])))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        held = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.cache.unlock(held.node)

    @rule(ids=IDS, salt=SALTS)
    def insert_own_pages(self, ids: tuple[int, ...], salt: str) -> None:
        prefixes = self.prefixes(ids, salt)
        if len(prefixes) > self.pool.num_free:
            return
        own = self.pool.allocate(len(prefixes))
        result = self.cache.insert(array("i", ids), own, salt)
        for prefix, page in zip(prefixes, own, strict=True):
            self.pages.setdefault(prefix, page)
        self.touch(prefixes)
        assert result.pages == [self.pages[p] for p in prefixes]

    @precondition(lambda self: self.held)
    @rule(data=st.data(), more=IDS)
    def extend_a_locked_prefix(self, data: st.DataObject, more: tuple[int, ...]) -> None:
        held = data.draw(st.sampled_from(self.held))
        salt, ids = held.prefix[0], held.prefix[1] + more
        prefixes = self.prefixes(ids, salt)
        num_shared = len(held.prefix[1]) // PAGE_SIZE
        if len(prefixes) - num_shared > self.pool.num_free:
            return
        own = self.pool.allocate(len(prefixes) - num_shared)
        shared = [self.pages[p] for p in prefixes[:num_shared]]
        result = self.cache.insert(array("i", ids), shared + own, salt)
        for prefix, page in zip(prefixes, shared + own, strict=True):
            self.pages.setdefault(prefix, page)
        self.touch(prefixes)
        assert result.pages == [self.pages[p] for p in prefixes]

    @rule(count=st.integers(0, 9))
    def evict_drops_the_least_recently_used_leaves(self, count: int) -> None:
        freed = self.cache.evict(count)
        locked = self.locked()
        for _ in range(freed):
            inner = {(salt, ids[:-PAGE_SIZE]) for salt, ids in self.pages}
            leaves = [p for p in self.pages if p not in inner and p not in locked]
            victim = min(leaves, key=lambda p: self.last_use[p])
            del self.pages[victim], self.last_use[victim]
        assert freed == count or all(p in locked for p in self.pages)

    @invariant()
    def accounts_agree_with_the_model(self) -> None:
        self.pool.check()
        self.cache.check()
        assert self.pool.num_tree == len(self.pages)
        assert self.pool.num_live == 0
        locked = self.locked() & self.pages.keys()
        assert self.cache.num_locked == len(locked)
        assert self.cache.num_evictable == len(self.pages) - len(locked)

    @invariant()
    def every_cached_prefix_is_found_in_its_page(self) -> None:
        for (salt, ids), page in self.pages.items():
            node, at = self.cache._roots[salt], 0
            while True:
                keys = [array("i", ids[i : i + PAGE_SIZE]).tobytes() for i in range(0, len(ids), PAGE_SIZE)]
                child = node.children[keys[at]]
                if at + len(child.pages) >= len(keys):
                    assert child.keys[: len(keys) - at] == keys[at:]
                    assert child.pages[len(keys) - at - 1] == page
                    break
                node, at = child, at + len(child.pages)


PrefixCacheMachine.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)
TestPrefixCache = PrefixCacheMachine.TestCase


def make(num_pages: int = 8, page_size: int = 4) -> tuple[PagePool, PrefixCache]:
    pool = PagePool(num_pages)
    return pool, PrefixCache(pool, page_size)


def fill(pool: PagePool, cache: PrefixCache, ids: range, salt: str = "") -> list[int]:
    return cache.insert(array("i", ids), pool.allocate(len(ids) // cache.page_size), salt).pages


@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 7, 8, 9, 15, 16, 17])
def test_match_returns_whole_pages_only(length: int) -> None:
    pool, cache = make()
    pages = fill(pool, cache, range(16))
    found = cache.match(array("i", range(length)))
    assert found.pages == pages[: length // 4]
    assert found.cached_len == length // 4 * 4


def test_salts_share_nothing() -> None:
    pool, cache = make()
    fill(pool, cache, range(8), "alice")
    assert cache.match(array("i", range(8)), "bob").cached_len == 0
    assert cache.match(array("i", range(8)), "alice").cached_len == 8


def test_evict_skips_locked_pages() -> None:
    pool, cache = make()
    fill(pool, cache, range(16))
    half = cache.match(array("i", range(8)))
    cache.lock(half.node)
    assert cache.evict(8) == 2
    assert cache.match(array("i", range(16))).pages == half.pages
    cache.unlock(half.node)
    assert cache.evict(8) == 2
    assert pool.num_free == 8


def test_a_match_makes_a_leaf_the_last_to_go() -> None:
    pool, cache = make()
    old, new = (cache.insert(array("i", [n] * 8), pool.allocate(2)).pages for n in (1, 2))
    cache.match(array("i", [1] * 8))
    cache.evict(2)
    assert cache.match(array("i", [1] * 8)).pages == old
    assert cache.match(array("i", [2] * 8)).pages == [] and len(new) == 2


def test_evict_takes_the_end_of_a_leaf_first() -> None:
    pool, cache = make()
    pages = fill(pool, cache, range(16))
    assert cache.evict(1) == 1
    assert cache.match(array("i", range(16))).pages == pages[:3]


def test_a_lock_survives_the_split_of_its_node() -> None:
    pool, cache = make()
    pages = fill(pool, cache, range(16))
    whole = cache.match(array("i", range(16)))
    cache.lock(whole.node)
    cache.match(array("i", range(8)))
    assert cache.evict(8) == 0
    cache.unlock(whole.node)
    cache.check()
    assert cache.match(array("i", range(16))).pages == pages
    assert cache.clear() == 4


def test_insert_frees_the_copy_of_what_the_tree_has() -> None:
    pool, cache = make()
    pages = fill(pool, cache, range(8))
    copy = pool.allocate(3)
    found = cache.insert(array("i", range(12)), copy)
    assert found.pages == [*pages, copy[2]]
    assert (pool.num_free, pool.num_tree, pool.num_live) == (5, 3, 0)


def test_ids_of_any_int32_value_are_keys() -> None:
    pool, cache = make(page_size=1)
    ids = array("i", [0, -1, 2**31 - 1, 256])
    pages = cache.insert(ids, pool.allocate(4)).pages
    assert cache.match(ids).pages == pages


def test_the_heap_of_leaves_stays_bounded() -> None:
    pool, cache = make()
    fill(pool, cache, range(8))
    for _ in range(1000):
        cache.match(array("i", range(8)))
    assert len(cache._leaves) <= 66
    cache.check()


def test_it_is_told_which_pages_left() -> None:
    pool, left = PagePool(8), []
    cache = PrefixCache(pool, 4, left.append)
    pages = fill(pool, cache, range(16))
    assert cache.evict(3) == 3
    assert left == pages[:0:-1]
    cache.clear()
    assert left == pages[::-1]
