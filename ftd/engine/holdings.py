"""What running sequences hold: pages of their own, a path in the prefix cache, a slot of recurrent state.

    begin ─▶ reserve ─▶ (step) ─▶ keep_state, share ─▶ … ─▶ end

A sequence stands on ``num_shared_pages`` pages of the cache, which it locks, and owns the pages behind them.
Nothing here says which sequence runs: that is the scheduler's. Integers only; one step loop owns it.
"""

from array import array
from collections.abc import Iterable

from ftd.engine.pages import Owner, PagePool
from ftd.engine.plan import Plan, num_pages_for
from ftd.engine.prefix_cache import Match, PrefixCache
from ftd.engine.sequence import Sequence, Status
from ftd.engine.slots import StateSlots


class Holdings:
    """Pages of ``pool`` and ``cache``, states of ``slots`` (None: the model has none)."""

    def __init__(self, plan: Plan, pool: PagePool, cache: PrefixCache, slots: StateSlots | None) -> None:
        assert plan.max_pages_per_sequence <= plan.num_pages <= pool.num_pages
        self.has_states = slots is not None
        self._page_size = plan.page_size
        self._pool = pool
        self._cache = cache
        self._slots = slots

    @property
    def num_free(self) -> int:
        """Pages of nobody."""
        return self._pool.num_free

    def evict(self, count: int) -> int:
        """Free up to ``count`` pages that only the cache has; return how many."""
        return self._cache.evict(count)

    def missing_pages(self, sequence: Sequence, num_tokens: int) -> int:
        """Return how many pages ``sequence`` lacks to hold ``num_tokens``."""
        return max(num_pages_for(num_tokens, self._page_size) - len(sequence.pages), 0)

    def room(self, sequence: Sequence) -> int:
        """Return how many tokens more its pages and the free ones hold."""
        return (len(sequence.pages) + self._pool.num_free) * self._page_size - sequence.computed_len

    def begin(self, sequence: Sequence, num_needed: int) -> bool:
        """Let ``sequence`` stand on what the cache has of it, if its other pages and ``num_needed`` fit.

        Sets its pages, node, slot and ``computed_len``; False and nothing is changed if they do not fit.
        """
        reusable = array("i") if sequence.is_embedding else sequence.ids[:-1]
        pages, cached_len, node = match = self._cache.match(reusable, sequence.cache_salt)
        if self._slots is not None:
            pages, cached_len, node = self._usable(match, sequence)
        self._cache.lock(node)
        need = num_pages_for(sequence.num_tokens, self._page_size) - len(pages) + num_needed
        if need > self._pool.num_free + self._cache.num_evictable:
            self._cache.unlock(node)
            return False
        sequence.node, sequence.num_shared_pages = node, len(pages)
        sequence.pages, sequence.computed_len = array("i", pages), cached_len
        if self._slots is not None:
            sequence.slot, sequence.is_state_sound = self._slots.begin(pages), True
            if not sequence.is_embedding:
                sequence.stops = self._slots.stops(sequence.prompt_len, cached_len, match.cached_len)
        return True

    def reserve(self, sequence: Sequence, count: int) -> None:
        """Take the pages that ``count`` tokens more need, evicting what only the cache has."""
        need = self.missing_pages(sequence, sequence.computed_len + count)
        self._cache.evict(need - self._pool.num_free)
        self.take(sequence, need)

    def take(self, sequence: Sequence, num_pages: int) -> None:
        """Give ``sequence`` free pages."""
        sequence.pages.extend(self._pool.allocate(num_pages))

    def share(self, sequence: Sequence) -> None:
        """Give the whole pages computed so far to the prefix cache and stand on them."""
        count = sequence.computed_len // self._page_size
        if sequence.is_embedding or count == sequence.num_shared_pages:
            return
        ids = sequence.ids[: count * self._page_size]
        match = self._cache.insert(ids, sequence.pages[:count], sequence.cache_salt)
        self._cache.lock(match.node)
        assert sequence.node is not None
        self._cache.unlock(sequence.node)
        sequence.pages[:count] = array("i", match.pages)
        sequence.node, sequence.num_shared_pages = match.node, count

    def keep_state(self, sequence: Sequence, *, is_output: bool) -> None:
        """Keep a sequence's state if it is that at the end of a page; of output the last one alone."""
        if self._slots is None or sequence.is_embedding or sequence.computed_len % self._page_size:
            return
        self.share(sequence)
        if sequence.num_shared_pages == 0:
            return
        page = sequence.pages[sequence.num_shared_pages - 1]
        kept = self._slots.keep(page, sequence.slot)
        if kept and is_output:
            if sequence.rolling_page not in (-1, page):
                self._slots.drop(sequence.rolling_page)
            sequence.rolling_page = page

    def end(self, sequence: Sequence) -> None:
        """Leave all pages: whole ones to the prefix cache, the rest free."""
        self.share(sequence)
        if self._slots is not None:
            if sequence.is_prefill and sequence.is_state_sound:  # who comes back goes on from here
                self.keep_state(sequence, is_output=False)
            self._slots.end(sequence.slot)
            sequence.slot, sequence.stops, sequence.rolling_page = -1, (), -1
        self._pool.free(sequence.pages[sequence.num_shared_pages :])
        assert sequence.node is not None
        self._cache.unlock(sequence.node)
        sequence.node, sequence.num_shared_pages, sequence.pages = None, 0, array("i")

    def check(self, running: Iterable[Sequence]) -> None:
        """Assert that ``running`` hold what is live and nothing else does; AssertionError names the fact."""
        self._pool.check()
        self._cache.check()
        live: list[int] = []
        for sequence in running:
            assert sequence.status is Status.RUNNING and sequence.node is not None
            assert sequence.node.lock_count > 0
            assert sequence.num_shared_pages * self._page_size <= sequence.computed_len
            assert sequence.computed_len <= len(sequence.pages) * self._page_size
            shared = sequence.pages[: sequence.num_shared_pages]
            assert all(self._pool.owner(page) is Owner.TREE for page in shared)
            live += sequence.pages[sequence.num_shared_pages :]
        assert len(set(live)) == len(live), "a page has two sequences"
        assert all(self._pool.owner(page) is Owner.LIVE for page in live)
        assert len(live) == self._pool.num_live
        if self._slots is not None:
            self._slots.check()
            assert self._slots.num_live == len({sequence.slot for sequence in running})
            kept = self._slots.kept_pages()
            assert all(self._pool.owner(page) is Owner.TREE for page in kept), "a state without its page"

    def _usable(self, match: Match, sequence: Sequence) -> Match:
        """Return the part of ``match`` up to the last state that is kept."""
        assert self._slots is not None
        count = self._slots.usable(match.pages)
        if count == len(match.pages):
            return match
        return self._cache.match(sequence.ids[: count * self._page_size], sequence.cache_salt)
