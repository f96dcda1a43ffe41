"""A sequence: the engine's view of one request, as ids and lengths.

    ids     |------------ prompt ------------|--- output ---|
    pages   |==cached==|====computed=====|..extend..|          0 <= computed_len < len(ids) while it runs
            tree's, locked | its own

Whoever runs the step owns it; nothing here is thread-safe. Times are nanoseconds of a monotonic clock, set
by the engine; 0 means not yet.
"""

from array import array
from collections.abc import Iterable
from collections.abc import Sequence as Ordered
from enum import Enum
from typing import TYPE_CHECKING, Literal

import msgspec

from ftd.engine.messages import SamplingParams
from ftd.engine.prefix_cache import Node

if TYPE_CHECKING:
    from ftd.engine.grammar import Constraint

Ids = Ordered[int]
FinishReason = Literal["stop", "length", "abort"]


class Status(Enum):
    """Where a sequence is in its life; ``preempt`` takes it from RUNNING back to WAITING."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Sequence(msgspec.Struct, eq=False, kw_only=True):
    """One request in the engine.

    ids: prompt and output so far, int32. prompt_len: how many of them came with the request.
    max_tokens: most output tokens, <= 0 means until the window is full. stop_ids: end it, are not emitted.
    window_tokens: the most ids at any time, <= 0 the engine's own window.
    num_keep: ids at the start that stay when the window is full and the oldest others leave it; -1: none
    leaves, the sequence ends. num_shifted: how many have left.
    is_embedding: run the prompt only, without the prefix cache, so that every hidden state is computed.
    constraint: what binds the output; None leaves it free. forced_ids: what must follow the id that is
    sampled next, and is appended with it; is_complete: nothing may follow that.

    Kept by the scheduler: ``pages`` (page numbers, int32; the first ``num_shared_pages`` are the tree's,
    locked through ``node``), ``computed_len`` (ids whose K and V lie in pages), ``cached_len`` (ids found in
    the prefix cache when first admitted), ``num_preemptions``, ``finish_reason``; with recurrent layers
    ``slot`` (of its state), ``stops`` (lengths at which the state is kept), ``rolling_page`` (whose end has
    the last state kept of the output), ``is_state_sound`` (the state is that of the computed ids).
    """

    request_id: int
    ids: "array[int]"
    prompt_len: int
    max_tokens: int = 0
    stop_ids: frozenset[int] = frozenset()
    sampling: SamplingParams = msgspec.field(default_factory=SamplingParams)
    num_logprobs: int = -1
    cache_salt: str = ""
    window_tokens: int = 0
    num_keep: int = -1
    num_shifted: int = 0
    is_embedding: bool = False
    constraint: "Constraint | None" = None
    forced_ids: Ids = ()
    is_complete: bool = False
    sampler_state: object = None

    arrival_ns: int = 0
    admitted_ns: int = 0
    first_token_ns: int = 0
    finished_ns: int = 0

    status: Status = Status.WAITING
    finish_reason: FinishReason | None = None
    order: int = 0
    pages: "array[int]" = msgspec.field(default_factory=lambda: array("i"))
    node: Node | None = None
    num_shared_pages: int = 0
    computed_len: int = 0
    cached_len: int = 0
    num_preemptions: int = 0
    abort_requested: bool = False
    slot: int = -1
    stops: tuple[int, ...] = ()
    rolling_page: int = -1
    is_state_sound: bool = True

    @classmethod
    def from_prompt(cls, request_id: int, prompt_ids: Iterable[int], **fields: object) -> "Sequence":
        """Build a waiting sequence; ``fields`` are this class's own."""
        ids = array("i", prompt_ids)
        return cls(request_id=request_id, ids=ids, prompt_len=len(ids), **fields)  # type: ignore[arg-type]

    @property
    def num_tokens(self) -> int:
        """Prompt and output ids so far."""
        return len(self.ids)

    @property
    def output_len(self) -> int:
        """Output ids so far; a stop id is not one."""
        return len(self.ids) + self.num_shifted - self.prompt_len

    @property
    def extend_len(self) -> int:
        """Ids whose K and V are not computed yet: 1 in decode, more in prefill."""
        return len(self.ids) - self.computed_len

    def chunk_len(self, budget: int) -> int:
        """Return how many ids to run next: at most ``budget``, and none beyond the next stop."""
        stop = next((stop for stop in self.stops if stop > self.computed_len), self.num_tokens)
        return min(budget, self.extend_len, stop - self.computed_len)

    @property
    def is_prefill(self) -> bool:
        """Whether several ids are to be run: a prompt, after a preemption its output too, or forced ids."""
        return self.extend_len > 1 or self.output_len == 0
