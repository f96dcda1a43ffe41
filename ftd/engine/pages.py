"""Who owns each page of KV: nobody (free), the prefix cache (tree), or one sequence (live).

    free --allocate--> live --give_to_tree--> tree --take_from_tree--> free
                       live --free----------> free

The one rule: a page is in exactly one of the three sets, so free + tree + live = total at all times. Pages
are numbers only; the tensors that they index belong to ``kv_pool``. Not thread-safe: one step loop owns it.
"""

from collections.abc import Iterable
from enum import IntEnum


class Owner(IntEnum):
    """The set that a page is in."""

    FREE = 0
    LIVE = 1
    TREE = 2


class PagePool:
    """``num_pages`` pages, each with one owner; the lowest free page is not favoured, the last freed is.

    Between calls: ``num_free + num_tree + num_live == num_pages``.
    """

    def __init__(self, num_pages: int) -> None:
        assert num_pages > 0
        self.num_pages = num_pages
        self.num_tree = 0
        self._owner = [Owner.FREE] * num_pages
        self._free = list(range(num_pages - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Pages that ``allocate`` can hand out now."""
        return len(self._free)

    @property
    def num_live(self) -> int:
        """Pages owned by sequences."""
        return self.num_pages - len(self._free) - self.num_tree

    def owner(self, page: int) -> Owner:
        """Return the set that ``page`` is in."""
        return self._owner[page]

    def allocate(self, count: int) -> list[int]:
        """Move ``count`` free pages to a sequence; the caller has made sure that there are enough."""
        assert 0 <= count <= len(self._free), (count, len(self._free))
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._owner[page] = Owner.LIVE
        return pages

    def free(self, pages: Iterable[int]) -> None:
        """Give a sequence's own pages back."""
        for page in pages:
            self._move(page, Owner.LIVE, Owner.FREE)
            self._free.append(page)

    def give_to_tree(self, page: int) -> None:
        """Make a sequence's page the prefix cache's."""
        self._move(page, Owner.LIVE, Owner.TREE)
        self.num_tree += 1

    def take_from_tree(self, page: int) -> None:
        """Free a page that the prefix cache drops."""
        self._move(page, Owner.TREE, Owner.FREE)
        self.num_tree -= 1
        self._free.append(page)

    def _move(self, page: int, source: Owner, target: Owner) -> None:
        assert self._owner[page] is source, f"page {page} is {self._owner[page].name}, not {source.name}"
        self._owner[page] = target

    def check(self) -> None:
        """Assert the invariant by counting: the free list has no page twice and agrees with the owners."""
        assert len(set(self._free)) == len(self._free), "a page is free twice"
        assert all(self._owner[page] is Owner.FREE for page in self._free), "a free page has an owner"
        counts = [self._owner.count(owner) for owner in Owner]
        assert counts == [self.num_free, self.num_live, self.num_tree], counts
        assert sum(counts) == self.num_pages, counts
