"""Who owns each slot of recurrent state: nobody (free), a sequence (live), a page of the prefix cache (kept).

    free --begin--> live --end--> free
                    live --keep(page)--> a copy in another slot, kept --drop, or least recently used--> free

A recurrent layer has no state of the middle of a prefix, so cached pages can only be used up to one whose end
has a state. A page of the prefix cache stands for all ids from the root to its end, so the state after them
is kept under the page's number and goes when the page leaves the cache. States are kept

- where a prompt leaves what the cache has already: that is where two prompts part, and a third may come;
- shortly before the end of a prompt: the next turn repeats it, except perhaps its last few ids;
- where a prompt was interrupted, if that is the end of a page: its request may come back;
- at each page that a sequence fills with output, in place of the one before: the next turn may repeat it.

The one rule: a slot is in exactly one of the three sets, so free + live + kept = total. Slots are numbers
only; ``copy(source, target)`` moves the bytes, at once. Not thread-safe: one step loop owns it.
"""

from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Sequence as Ordered

from ftd.engine.plan import Plan
from ftd.engine.state_pool import StatePool

# Ids at the end of a prompt that its next turn may not repeat: what the template adds to ask for an answer
PROMPT_TAIL = 8
NO_SLOT = -1


class StateSlots:
    """``num_slots`` slots; more than there are sequences, so that ``begin`` always finds one."""

    def __init__(self, num_slots: int, page_size: int, copy: Callable[[int, int], None]) -> None:
        assert num_slots > 0
        self.num_slots = num_slots
        self._page_size = page_size
        self._copy = copy
        self._free = list(range(num_slots - 1, -1, -1))
        self._live: set[int] = set()
        self._kept: OrderedDict[int, int] = OrderedDict()  # page -> slot, least recently used first

    @classmethod
    def over(cls, states: StatePool | None, sizes: Plan) -> "StateSlots | None":
        """Return the slots of ``states``; None for a model without them."""
        return None if states is None else cls(sizes.num_state_slots, sizes.page_size, states.copy)

    @property
    def num_free(self) -> int:
        """Slots of nobody."""
        return len(self._free)

    @property
    def num_live(self) -> int:
        """Slots of sequences."""
        return len(self._live)

    @property
    def num_kept(self) -> int:
        """Slots of pages."""
        return len(self._kept)

    def usable(self, pages: Ordered[int]) -> int:
        """Return how many of ``pages``, a path from the root, lie before the last state that is kept."""
        return next((i for i in range(len(pages), 0, -1) if pages[i - 1] in self._kept), 0)

    def begin(self, pages: Ordered[int]) -> int:
        """Return a slot for a sequence that goes on after ``pages``; without pages it starts from zeros."""
        source = self._kept.pop(pages[-1]) if pages else NO_SLOT
        slot = self._take()
        if pages:
            if slot == NO_SLOT:
                slot = source  # nothing else is left: the state itself becomes the sequence's
            else:
                self._copy(source, slot)
                self._kept[pages[-1]] = source
        assert slot != NO_SLOT, "more sequences than slots"
        self._live.add(slot)
        return slot

    def end(self, slot: int) -> None:
        """Give a sequence's slot back."""
        self._live.remove(slot)
        self._free.append(slot)

    def keep(self, page: int, slot: int) -> bool:
        """Keep a copy of the live state ``slot`` as that at the end of ``page``; False if no slot is left."""
        assert slot in self._live, slot
        if page in self._kept:
            self._kept.move_to_end(page)
            return True
        target = self._take()
        if target == NO_SLOT:
            return False
        self._copy(slot, target)
        self._kept[page] = target
        return True

    def drop(self, page: int) -> None:
        """Forget the state at the end of ``page``, if there is one."""
        slot = self._kept.pop(page, NO_SLOT)
        if slot != NO_SLOT:
            self._free.append(slot)

    def stops(self, prompt_len: int, usable_len: int, cached_len: int) -> tuple[int, ...]:
        """Return the lengths, whole pages, at which the state of a prompt is to be kept.

        usable_len: ids that need not run again. cached_len: ids that the prefix cache has.
        """
        end = max(prompt_len - PROMPT_TAIL, 0) // self._page_size * self._page_size
        return tuple(sorted({length for length in (cached_len, end) if length > usable_len}))

    def check(self) -> None:
        """Assert that every slot has one owner."""
        slots = [*self._free, *self._live, *self._kept.values()]
        assert sorted(slots) == list(range(self.num_slots)), slots

    def kept_pages(self) -> list[int]:
        """Return the pages that have a state, least recently used first."""
        return list(self._kept)

    def _take(self) -> int:
        """Return a slot of nobody, at need that of the page used longest ago; NO_SLOT if all are live."""
        if self._free:
            return self._free.pop()
        return self._kept.popitem(last=False)[1] if self._kept else NO_SLOT
