"""The plan: what the engine will allocate, decided in integers before anything is.

Order of needs: weights, KV for the requested window, workspace; the rest goes to more windows, up to one for
each sequence. A plan that does not fit is refused with the numbers. Pure functions; nobody writes into a
plan.
"""

import math
from collections.abc import Callable

import msgspec

from ftd.errors import InvalidOption, OutOfMemory
from ftd.units import format_bytes

DEFAULT_CONTEXT_TOKENS = 4096
MIN_CONTEXT_TOKENS = 16
# one head's K of a page is 4 KiB in f16 at C = 64; at most 31 tokens of a warm prompt run again
DEFAULT_PAGE_SIZE = 32
DEFAULT_MAX_SEQUENCES = 8
DEFAULT_CHUNK_TOKENS = 512
# A step of so many tokens takes 0.6 s of an H200, in which no other sequence gets a token
MAX_STREAMING_CHUNK_TOKENS = 16384
# of recurrent state: a sequence has one, the others keep what prompts share; fewer where memory is short
SLOTS_PER_SEQUENCE = 4


class MemoryNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """What a model takes: weights, K and V of a token over all layers, workspace (fixed and a token).

    ``max_context_tokens``: the longest window the model was trained for. ``state_bytes``: the recurrent state
    of one sequence. ``overhead_bytes``: what is needed whatever the sizes are. ``workspace``: says it for
    tokens of a step, sequences and tokens of a window, where it is not that simple.
    """

    weight_bytes: int
    kv_bytes_per_token: int
    workspace_bytes: int
    workspace_bytes_per_token: int
    max_context_tokens: int
    state_bytes: int = 0
    overhead_bytes: int = 0
    workspace: Callable[[int, int, int], int] | None = None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in force.

    max_step_tokens = prefill_chunk_tokens + max_sequences: tokens of the largest step.
    max_pages_per_sequence: pages of one full window; ``num_pages`` is never smaller, so a single sequence
    can always reach the end of its window. whole_prompts: a prompt runs in one step or waits.
    num_state_slots: recurrent states, of running sequences and kept; 0 in a model without them.
    overhead_bytes: of a card's driver and kernels.
    """

    page_size: int
    num_pages: int
    max_sequences: int
    context_tokens: int
    prefill_chunk_tokens: int
    weight_bytes: int
    kv_bytes: int
    workspace_bytes: int
    whole_prompts: bool = False
    num_state_slots: int = 0
    state_bytes: int = 0
    overhead_bytes: int = 0

    @property
    def max_step_tokens(self) -> int:
        """Most tokens in one step."""
        return self.prefill_chunk_tokens + self.max_sequences

    @property
    def max_pages_per_sequence(self) -> int:
        """Pages of one full window."""
        return num_pages_for(self.context_tokens, self.page_size)

    @property
    def total_bytes(self) -> int:
        """Everything together."""
        sequence_bytes = self.kv_bytes + self.state_bytes
        return self.weight_bytes + sequence_bytes + self.workspace_bytes + self.overhead_bytes


def num_pages_for(num_tokens: int, page_size: int) -> int:
    """Return how many pages hold ``num_tokens``."""
    return -(-num_tokens // page_size)


def streaming_chunk_tokens(missing_bytes: int) -> int:
    """Return the tokens of a step that compute about as long as a card copies ``missing_bytes`` for it.

    Of one token 30b-a3b computes as long as 2 MB are copied (H200: 27,000 tokens and 55 GB a second); half of
    that leaves room for models with less to compute. The nearest power of two, by ratio: a shorter step
    copies more often, a longer one keeps decode waiting.
    """
    tokens = max(missing_bytes >> 20, 1)
    return min(1 << round(math.log2(tokens)), MAX_STREAMING_CHUNK_TOKENS)


def make(
    needs: MemoryNeeds,
    *,
    free_bytes: int,
    context_tokens: int = 0,
    max_sequences: int = 0,
    kv_bytes: int = 0,
    prefill_chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
    page_size: int = DEFAULT_PAGE_SIZE,
    whole_prompts: bool = False,
) -> Plan:
    """Decide the sizes of the engine.

    free_bytes: memory that may be taken. kv_bytes: most for KV (0: enough for max_sequences windows, bounded
    by memory). context_tokens: the window (0: 4096 or what fits); a window longer than the model's is cut to
    it. max_sequences: 0 means 8, fewer where fewer windows fit. whole_prompts: a chunk is a window at least,
    because prompts are not cut into chunks.

    Raises OutOfMemory if one window does not fit, with what is needed, what is available and what would fit.
    Raises InvalidOption for sizes that make no sense.
    """
    _check(context_tokens, max_sequences, kv_bytes, prefill_chunk_tokens, page_size)
    window = min(context_tokens or DEFAULT_CONTEXT_TOKENS, needs.max_context_tokens)
    if whole_prompts:
        prefill_chunk_tokens = max(prefill_chunk_tokens, window)
    room = _Room(
        needs,
        free_bytes,
        kv_bytes,
        prefill_chunk_tokens,
        page_size,
        max_sequences or DEFAULT_MAX_SEQUENCES,
        SLOTS_PER_SEQUENCE if needs.state_bytes else 0,
    )
    room.give_way(window, fewer_sequences=not max_sequences)
    window = _fitting_window(room, window, may_shrink=not context_tokens)
    window_pages = num_pages_for(window, page_size)
    num_pages = min(room.num_pages(window), window_pages * room.sequences)
    if not max_sequences:
        room.sequences = max(1, min(room.sequences, num_pages // window_pages))
        num_pages = min(num_pages, window_pages * room.sequences)
    return Plan(
        page_size=page_size,
        num_pages=num_pages,
        max_sequences=room.sequences,
        context_tokens=window,
        prefill_chunk_tokens=min(prefill_chunk_tokens, window),
        weight_bytes=needs.weight_bytes,
        kv_bytes=num_pages * room.page_bytes,
        whole_prompts=whole_prompts,
        num_state_slots=room.slots * room.sequences,
        state_bytes=room.state_bytes,
        workspace_bytes=room.workspace(window),
        overhead_bytes=needs.overhead_bytes,
    )


class _Room(msgspec.Struct):
    """What is left for KV beside the weights, the workspace, and ``slots`` states for each sequence."""

    needs: MemoryNeeds
    available: int
    kv_bytes: int
    chunk_tokens: int
    page_size: int
    sequences: int
    slots: int

    @property
    def page_bytes(self) -> int:
        return self.page_size * self.needs.kv_bytes_per_token

    @property
    def state_bytes(self) -> int:
        return self.needs.state_bytes * self.slots * self.sequences

    def workspace(self, window: int) -> int:
        tokens = min(self.chunk_tokens, window) + self.sequences
        if self.needs.workspace is not None:
            return self.needs.workspace(tokens, self.sequences, window)
        return self.needs.workspace_bytes + self.needs.workspace_bytes_per_token * tokens

    def rest(self, window: int) -> int:
        fixed = self.needs.weight_bytes + self.needs.overhead_bytes + self.state_bytes
        return max(self.available - fixed - self.workspace(window), 0)

    def num_pages(self, window: int) -> int:
        """Return how many pages fit if the window is that long."""
        rest = self.rest(window)
        return (min(rest, self.kv_bytes) if self.kv_bytes else rest) // self.page_bytes

    def give_way(self, window: int, fewer_sequences: bool) -> None:
        """Take fewer states until ``window`` fits: those that are kept first, then those of sequences."""
        while num_pages_for(window, self.page_size) > self.rest(window) // self.page_bytes:
            if self.slots > 1:
                self.slots //= 2
            elif self.slots == 1 and self.sequences > 1 and fewer_sequences:
                self.sequences //= 2
            else:
                return


def _fitting_window(room: _Room, window: int, *, may_shrink: bool) -> int:
    """Return the window, or the longest that fits if it may be shorter. Raises OutOfMemory if none fits."""
    if num_pages_for(window, room.page_size) <= room.num_pages(window):
        return window
    fitting = _longest_window(window, room.page_size, room.num_pages)
    if not may_shrink or fitting < min(MIN_CONTEXT_TOKENS, window):
        raise _refusal(room, window, fitting)
    return fitting


def _longest_window(window: int, page_size: int, room: Callable[[int], int]) -> int:
    """Return the most tokens <= ``window`` that fit, 0 if none; more tokens never leave more room."""
    low, high = 0, window
    while low < high:
        middle = (low + high + 1) // 2
        if num_pages_for(middle, page_size) <= room(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _check(context_tokens: int, max_sequences: int, kv_bytes: int, chunk_tokens: int, page_size: int) -> None:
    for name, value, low in (
        ("context_tokens", context_tokens, 0),
        ("max_sequences", max_sequences, 0),
        ("kv_bytes", kv_bytes, 0),
        ("prefill_chunk_tokens", chunk_tokens, 1),
        ("page_size", page_size, 1),
    ):
        if value < low:
            raise InvalidOption(f"{name} must be at least {low}: {value}")


def _refusal(room: _Room, window: int, fitting: int) -> OutOfMemory:
    weight_bytes, workspace_bytes = room.needs.weight_bytes, room.workspace(window)
    kv_needed = num_pages_for(window, room.page_size) * room.page_bytes
    needed = weight_bytes + kv_needed + workspace_bytes + room.state_bytes + room.needs.overhead_bytes
    states = f", states {format_bytes(room.state_bytes)}" if room.state_bytes else ""
    if room.needs.overhead_bytes:
        states += f", driver, kernels and staging {format_bytes(room.needs.overhead_bytes)}"
    fact = (
        f"not enough memory: needed {format_bytes(needed)} (weights {format_bytes(weight_bytes)}, "
        f"KV of {window} tokens {format_bytes(kv_needed)}, workspace {format_bytes(workspace_bytes)}"
        f"{states}), available {format_bytes(room.available)}"
    )
    if room.kv_bytes and needed <= room.available:
        fact += f", KV limited to {format_bytes(room.kv_bytes)}"
    if fitting >= MIN_CONTEXT_TOKENS:
        return OutOfMemory(
            fact, f"set num_ctx to {fitting} or less, or free {format_bytes(needed - room.available)}"
        )
    return OutOfMemory(fact, "no context fits: use a smaller model or quantisation, or free memory")
