"""The prefix cache: a radix tree over token ids that lets sequences share pages of KV.

    root(salt) ── [A B] ── [C]        each edge holds whole pages: the ids of page i (as bytes) and its number
                     └──── [D E F]    children are found by the ids of their first page

Only whole pages are in the tree, and a page in the tree is never written again; a sequence recomputes the
tail of its prompt that does not fill a page. Trees of different salts share nothing. A locked node (and all
above it) is in use by a sequence and is never evicted; the rest is evicted a page at a time, from the leaf
that was used longest ago. Not thread-safe: one step loop owns it.
"""

import heapq
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Optional

import msgspec

from ftd.engine.pages import Owner, PagePool


class Node(msgspec.Struct, eq=False):
    """One edge of the tree: ``keys[i]`` are the ids (int32 bytes) whose K and V lie in ``pages[i]``.

    ``lock_count``: how many sequences stand on this node or below it. ``last_use``: number of the last match
    or insert that passed here; never smaller than that of a child.
    """

    parent: Optional["Node"]
    keys: list[bytes]
    pages: list[int]
    last_use: int
    lock_count: int = 0
    children: dict[bytes, "Node"] = {}

    @property
    def is_root(self) -> bool:
        """Whether this is the root of a salt's tree; a root holds no pages and is never evicted."""
        return self.parent is None


class Match(NamedTuple):
    """``pages`` of the tree hold the first ``cached_len`` ids; ``node`` is what to lock while using them."""

    pages: list[int]
    cached_len: int
    node: Node


class PrefixCache:
    """Radix tree over the pages of ``pool`` that it owns.

    A sequence's life: ``match`` → ``lock(node)`` → use the pages, read only → ``insert`` what it computed →
    ``unlock(node)``. Between calls ``num_locked + num_evictable == pool.num_tree``. ``evicted(page)`` hears
    of each page that leaves.
    """

    def __init__(self, pool: PagePool, page_size: int, evicted: Callable[[int], None] | None = None) -> None:
        assert page_size > 0
        self.page_size = page_size
        self.num_locked = 0
        self._pool = pool
        self._evicted = evicted
        self._roots: dict[str, Node] = {}
        self._clock = 0
        self._leaves: list[tuple[int, int, Node]] = []
        self._num_offers = 0

    @property
    def num_evictable(self) -> int:
        """Pages that ``evict`` could free now: all that no sequence has locked."""
        return self._pool.num_tree - self.num_locked

    def match(self, ids: "array[int]", salt: str = "") -> Match:
        """Return the longest run of whole pages at the start of ``ids`` (int32) that the tree holds.

        To leave a token whose logits can be computed, pass all ids but the last.
        """
        node, pages, _ = self._walk(self._page_keys(ids), salt)
        return Match(pages, len(pages) * self.page_size, node)

    def lock(self, node: Node) -> None:
        """Keep the pages from the root to ``node`` from being evicted; counts."""
        step: Node | None = node
        while step is not None:
            if step.lock_count == 0:
                self.num_locked += len(step.pages)
            step.lock_count += 1
            step = step.parent

    def unlock(self, node: Node) -> None:
        """Undo one ``lock``."""
        step: Node | None = node
        while step is not None:
            assert step.lock_count > 0, "unlock without lock"
            step.lock_count -= 1
            if step.lock_count == 0:
                self.num_locked -= len(step.pages)
                self._offer(step)
            step = step.parent

    def insert(self, ids: "array[int]", pages: Sequence[int], salt: str = "") -> Match:
        """Take over ``pages``, which hold the first ids, whole pages; return the tree's pages for them.

        Pages that the tree lacks pass from their sequence to it. Where it already holds the same ids in
        another page, the sequence's copy is freed, and the sequence must use the tree's. Pages that are the
        tree's already stay.
        """
        keys = self._page_keys(ids)[: len(pages)]
        assert len(keys) == len(pages), (len(keys), len(pages))
        node, found, last_use = self._walk(keys, salt)
        for ours, theirs in zip(pages, found, strict=False):
            if ours != theirs:
                self._pool.free((ours,))
        if len(found) < len(pages):
            fresh = list(pages[len(found) :])
            for page in fresh:
                self._pool.give_to_tree(page)
            child = Node(node, keys[len(found) :], fresh, last_use)
            node.children[child.keys[0]] = child
            self._offer(child)
            node, found = child, found + fresh
        return Match(found, len(found) * self.page_size, node)

    def evict(self, count: int) -> int:
        """Free up to ``count`` pages, least recently used first; return how many. Locked pages stay."""
        freed = 0
        while freed < count and self._leaves:
            last_use, _, node = self._leaves[0]
            if not self._is_evictable(node) or node.last_use != last_use:
                heapq.heappop(self._leaves)
                continue
            page = node.pages.pop()
            self._pool.take_from_tree(page)
            if self._evicted is not None:
                self._evicted(page)
            freed += 1
            if node.pages:
                node.keys.pop()
            else:
                heapq.heappop(self._leaves)
                self._remove(node)
        return freed

    def clear(self) -> int:
        """Evict everything that is not locked; return the number of pages freed."""
        return self.evict(self.num_evictable)

    def check(self) -> None:
        """Assert the structure of every tree, and that its pages are the pool's tree pages, once each."""
        pages: list[int] = []
        locked = 0
        offered = {id(node) for last_use, _, node in self._leaves if last_use == node.last_use}
        for node in self._nodes():
            assert len(node.keys) == len(node.pages)
            assert node.is_root or node.pages, "an empty node"
            assert all(len(key) == 4 * self.page_size for key in node.keys)
            assert node.lock_count >= sum(child.lock_count for child in node.children.values())
            for key, child in node.children.items():
                assert child.parent is node and child.keys[0] == key
                assert child.last_use <= node.last_use
            assert not self._is_evictable(node) or id(node) in offered, "an evictable leaf was forgotten"
            pages += node.pages
            locked += len(node.pages) if node.lock_count else 0
        assert len(set(pages)) == len(pages), "a page is in the tree twice"
        assert all(self._pool.owner(page) is Owner.TREE for page in pages)
        assert len(pages) == self._pool.num_tree and locked == self.num_locked

    def _page_keys(self, ids: "array[int]") -> list[bytes]:
        data, width = ids.tobytes(), 4 * self.page_size
        return [data[at : at + width] for at in range(0, len(data) - width + 1, width)]

    def _walk(self, keys: list[bytes], salt: str) -> tuple[Node, list[int], int]:
        """Follow ``keys`` from the root of ``salt``; split where they part; mark the path as used."""
        self._clock += 1
        node = self._roots.get(salt)
        if node is None:
            node = self._roots[salt] = Node(None, [], [], 0)
        node.last_use = self._clock
        pages: list[int] = []
        while len(pages) < len(keys):
            child = node.children.get(keys[len(pages)])
            if child is None:
                break
            rest = keys[len(pages) : len(pages) + len(child.keys)]
            if rest != child.keys:
                same = next(
                    (i for i, (a, b) in enumerate(zip(rest, child.keys, strict=False)) if a != b), len(rest)
                )
                child = self._split(child, same)
            child.last_use = self._clock
            pages += child.pages
            node = child
        self._offer(node)
        return node, pages, self._clock

    def _split(self, node: Node, count: int) -> Node:
        """Put a new node with the first ``count`` pages above ``node``, which stays what others hold."""
        assert node.parent is not None and 0 < count < len(node.pages)
        upper = Node(node.parent, node.keys[:count], node.pages[:count], node.last_use, node.lock_count)
        node.parent.children[upper.keys[0]] = upper
        node.keys, node.pages, node.parent = node.keys[count:], node.pages[count:], upper
        upper.children[node.keys[0]] = node
        return upper

    def _is_evictable(self, node: Node) -> bool:
        return bool(node.pages) and not node.children and node.lock_count == 0

    def _offer(self, node: Node) -> None:
        """Put a node that can be evicted on the heap; entries with an old ``last_use`` are skipped there."""
        if not self._is_evictable(node):
            return
        if len(self._leaves) > 64 and len(self._leaves) > 4 * self._pool.num_tree:
            self._leaves = [entry for entry in self._leaves if self._is_current(entry)]
            heapq.heapify(self._leaves)
        self._num_offers += 1
        heapq.heappush(self._leaves, (node.last_use, self._num_offers, node))

    def _is_current(self, entry: tuple[int, int, Node]) -> bool:
        return entry[0] == entry[2].last_use and self._is_evictable(entry[2])

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[node.keys[0]]
        node.keys = []
        if not parent.is_root:
            self._offer(parent)
        elif not parent.children and parent.lock_count == 0:
            self._roots = {salt: root for salt, root in self._roots.items() if root is not parent}

    def _nodes(self) -> Iterator[Node]:
        pending = list(self._roots.values())
        while pending:
            node = pending.pop()
            yield node
            pending.extend(node.children.values())
