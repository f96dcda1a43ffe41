"""Output items of recent answers, for clients that name one instead of sending it again (``item_reference``).

Kept in memory, the oldest dropped first: a client that is told an item is gone sends the item itself.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

from ftd.errors import NotFound

Item = Mapping[str, Any]

MAX_ITEMS = 1000
MAX_CHARS = 16 << 20


class KeptItems:
    """Items by id. Holds at most MAX_ITEMS with MAX_CHARS of text together."""

    def __init__(self) -> None:
        self._items: OrderedDict[str, tuple[Item, int]] = OrderedDict()
        self._num_chars = 0

    def keep(self, items: Iterable[Item]) -> None:
        """Remember finished items, each under its own id."""
        for item in items:
            num_chars = _num_chars(item)
            self._items[item["id"]] = (item, num_chars)
            self._num_chars += num_chars
        while len(self._items) > MAX_ITEMS or self._num_chars > MAX_CHARS:
            _, (_, num_chars) = self._items.popitem(last=False)
            self._num_chars -= num_chars

    def find(self, item_id: str) -> Item:
        """Return an item; raise NotFound for one that never was or is no longer kept."""
        try:
            return self._items[item_id][0]
        except KeyError:
            raise NotFound(
                f"no such item, or it is no longer kept: {item_id:.80}",
                "send the item itself, or set store to false",
            ) from None


def _num_chars(item: Item) -> int:
    texts = [item.get("arguments", ""), item.get("encrypted_content", "")]
    return sum(map(len, texts)) + sum(len(part["text"]) for part in item.get("content", ()))
