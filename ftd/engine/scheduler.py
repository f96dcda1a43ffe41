"""The scheduler: which tokens run in the next step. Integers only.

    add ─▶ waiting ──admit──▶ running ──▶ finished      schedule() → Batch → (step) → advance(batch, ids)
              ▲───preempt───────┘

Each step holds one token of every sequence in decode, and prefill chunks of at most ``prefill_chunk_tokens``
together, so a long prompt never stops the others. First come, first served: both queues are in order of
arrival, and what runs arrived before what waits. Pages are taken when a step needs them; when there are
none, unlocked pages of the prefix cache are evicted, then the youngest sequence is preempted: its whole
pages go to the prefix cache, where it finds again what nobody needed meanwhile. Not thread-safe: one step
loop owns it.
"""

from collections import deque
from collections.abc import Sequence as Ordered

from ftd.engine.batch import Batch, Entry
from ftd.engine.holdings import Holdings
from ftd.engine.pages import PagePool
from ftd.engine.plan import Plan
from ftd.engine.prefix_cache import PrefixCache
from ftd.engine.sequence import FinishReason, Sequence, Status
from ftd.engine.slots import StateSlots
from ftd.errors import InvalidRequest, PromptTooLong


class Scheduler:
    """Continuous batching over ``pool`` and ``cache``.

    The loop that owns it::

        scheduler.add(sequence)
        while (batch := scheduler.schedule()) is not None:
            step = batch.fill(arrays)                       # run the graph on it, then one id for each of
            for sequence, token in scheduler.advance(batch, ids):   # batch.sampled_sequences: emit them
                ...
            for sequence in scheduler.take_finished():      # finish_reason says why; also after abort()
                ...

    Counters since the start: ``num_steps``, ``prefill_tokens``, ``decode_tokens``, ``cached_tokens``.
    """

    def __init__(
        self, plan: Plan, pool: PagePool, cache: PrefixCache, slots: StateSlots | None = None
    ) -> None:
        self.plan = plan
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self.num_steps = self.prefill_tokens = self.decode_tokens = self.cached_tokens = 0
        self._holdings = Holdings(plan, pool, cache, slots)
        self._by_id: dict[int, Sequence] = {}
        self._finished: list[Sequence] = []
        self._to_abort: list[Sequence] = []
        self._in_flight: Batch | None = None
        self._ahead: Batch | None = None
        self._num_added = 0

    @property
    def has_work(self) -> bool:
        """Whether ``schedule`` will return a batch."""
        return bool(self.running or self.waiting)

    def check_new(self, sequence: Sequence) -> None:
        """Raise InvalidRequest (no ids) or PromptTooLong unless ``sequence`` can be queued."""
        if not sequence.ids:
            raise InvalidRequest("the prompt has no tokens")
        window = self._window(sequence)
        if sequence.num_tokens > window - (0 if sequence.is_embedding else 1):
            raise PromptTooLong(
                f"the prompt is too long: {sequence.num_tokens} tokens, context window {window}",
                "shorten the prompt or raise num_ctx",
            )

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence. Raises what ``check_new`` does."""
        self.check_new(sequence)
        assert sequence.request_id not in self._by_id, f"request id is in use: {sequence.request_id}"
        self._num_added += 1
        sequence.order = self._num_added
        self._by_id[sequence.request_id] = sequence
        self.waiting.append(sequence)

    def abort(self, request_id: int) -> bool:
        """End a sequence (reason ``abort``) now or after the step in flight; return False if it had ended."""
        sequence = self._by_id.get(request_id)
        if sequence is None:
            return False
        if self._in_flight is None or sequence.status is Status.WAITING:
            self._finish(sequence, "abort")
        elif not sequence.abort_requested:
            sequence.abort_requested = True
            self._to_abort.append(sequence)
        return True

    def schedule(self) -> Batch | None:
        """Choose the next step's tokens and take the pages they need; None when there is nothing to do."""
        assert self._in_flight is None, "advance or drop the step in flight first"
        chosen: dict[Sequence, int] = {}
        num_preempted = self._schedule_decode(chosen)
        if self.waiting or len(chosen) < len(self.running):
            self._schedule_prompts(chosen, num_preempted)
        if not chosen:
            assert not self.has_work, "nothing to run though sequences wait"
            return None
        self._in_flight = Batch(
            tuple(
                [
                    Entry(s, s.computed_len, n, n == s.extend_len and not s.is_embedding)
                    for s, n in chosen.items()
                ]
            )
        )
        return self._in_flight

    def _schedule_prompts(self, chosen: dict[Sequence, int], num_preempted: int) -> None:
        """Add what there is room for of the prompts that run, then of those that wait."""
        num_preempted += self._schedule_prefill(chosen)
        budget = self.plan.prefill_chunk_tokens - sum(n for s, n in chosen.items() if s.is_prefill)
        while budget > 0 and not num_preempted and self._next_fits(budget) and self._admit_next():
            count = self.running[-1].chunk_len(budget)
            self._holdings.reserve(self.running[-1], count)
            chosen[self.running[-1]] = count
            budget -= count

    def schedule_ahead(self) -> Batch | None:
        """Choose the step after the one in flight before its ids are known; None where that cannot be done.

        All sequences of the step in flight then run one token more, in the same rows. It takes pages that are
        free, and nothing else changes, so that a sequence which turns out to have ended lost nothing.
        """
        batch = self._in_flight
        assert batch is not None and self._ahead is None
        if self._holdings.has_states or self.waiting or self._to_abort:
            return None
        if [entry.sequence for entry in batch.entries] != self.running:
            return None
        if not all(self._goes_on(entry) for entry in batch.entries):
            return None
        ends = [entry.start + entry.num_tokens + 1 for entry in batch.entries]
        needs = [
            self._holdings.missing_pages(entry.sequence, end)
            for entry, end in zip(batch.entries, ends, strict=True)
        ]
        if sum(needs) > self._holdings.num_free:
            return None
        for entry, need in zip(batch.entries, needs, strict=True):
            self._holdings.take(entry.sequence, need)
        self._ahead = Batch(
            tuple(
                Entry(entry.sequence, end - 1, 1, True)
                for entry, end in zip(batch.entries, ends, strict=True)
            )
        )
        return self._ahead

    def _goes_on(self, entry: Entry) -> bool:
        """Return whether nothing but a stop id can end the sequence with the id that the step samples."""
        sequence = entry.sequence
        if not entry.wants_logits or sequence.constraint is not None:
            return False
        if sequence.num_tokens + 1 >= self._window(sequence):
            return False
        return sequence.max_tokens <= 0 or sequence.output_len + 1 < sequence.max_tokens

    def advance(self, batch: Batch, sampled: Ordered[int]) -> list[tuple[Sequence, int]]:
        """Move lengths forward after a step; return the ids to emit. What ended is in ``take_finished()``.

        ``sampled``: one id for each of ``batch.sampled_sequences``, in that order.
        """
        assert batch is self._in_flight
        self._in_flight, self._ahead = self._ahead, None
        self.num_steps += 1
        tokens = iter(sampled)
        emitted: list[tuple[Sequence, int]] = []
        for sequence, start, count, wants_logits in batch.entries:
            if sequence.status is not Status.RUNNING:  # it ended while this step was launched ahead
                next(tokens)
                continue
            was_prefill = sequence.is_prefill
            if start < sequence.prompt_len:
                self.prefill_tokens += count
            else:
                self.decode_tokens += count
            sequence.computed_len += count
            if self._holdings.has_states and (not was_prefill or sequence.computed_len in sequence.stops):
                self._holdings.keep_state(sequence, is_output=not was_prefill)
            token = next(tokens) if wants_logits else None
            if sequence.abort_requested:
                continue
            if token is not None:
                if was_prefill:
                    self._holdings.share(sequence)
                for each in self._append(sequence, token):
                    emitted.append((sequence, each))
            elif sequence.extend_len == 0:
                self._finish(sequence, "stop")
        assert next(tokens, None) is None, "more ids than sampled sequences"
        self._finish_aborted()
        return emitted

    def drop(self, batch: Batch) -> None:
        """Forget the step in flight after it failed: no length moves, its tokens are scheduled again."""
        assert batch is self._in_flight and self._ahead is None
        self._in_flight = None
        if self._holdings.has_states:  # a state may have moved on, and none goes back
            for entry in batch.entries:
                entry.sequence.is_state_sound = False
            while self.running:
                self._preempt(self.running[-1])
        self._finish_aborted()

    def take_finished(self) -> list[Sequence]:
        """Return the sequences that ended since the last call; they own no pages any more."""
        finished, self._finished = self._finished, []
        return finished

    def _finish_aborted(self) -> None:
        for sequence in self._to_abort:
            self._finish(sequence, "abort")
        self._to_abort.clear()

    def _schedule_decode(self, chosen: dict[Sequence, int]) -> int:
        num_preempted = 0
        for sequence in list(self.running):
            if sequence.status is not Status.RUNNING or sequence.is_prefill:
                continue
            need = self._holdings.missing_pages(sequence, sequence.num_tokens)
            if need:
                num_preempted += self._make_room(need, sequence, chosen)
                if self._holdings.num_free < need:
                    self._preempt(sequence)
                    num_preempted += 1
                    continue
                self._holdings.reserve(sequence, 1)
            chosen[sequence] = 1
        return num_preempted

    def _schedule_prefill(self, chosen: dict[Sequence, int]) -> int:
        num_preempted = 0
        budget = self.plan.prefill_chunk_tokens
        for sequence in list(self.running):
            if budget == 0 or sequence.status is not Status.RUNNING or not sequence.is_prefill:
                continue
            count = sequence.chunk_len(budget)
            need = self._holdings.missing_pages(sequence, sequence.computed_len + count)
            num_preempted += self._make_room(need, sequence, chosen)
            count = min(count, self._holdings.room(sequence))
            if count > 0:
                self._holdings.reserve(sequence, count)
                chosen[sequence] = count
                budget -= count
        return num_preempted

    def _make_room(self, count: int, sequence: Sequence, chosen: dict[Sequence, int]) -> int:
        """Try to free ``count`` pages: evict, then preempt the younger; return how many were preempted."""
        num_preempted = 0
        while (lacking := count - self._holdings.num_free) > 0:
            if self._holdings.evict(lacking) == lacking or self.running[-1] is sequence:
                break
            chosen.pop(self.running[-1], None)  # a younger one may decode while an older one's prompt runs
            self._preempt(self.running[-1])
            num_preempted += 1
        return num_preempted

    def _next_fits(self, budget: int) -> bool:
        """Say whether the first waiting sequence may run in a step that has ``budget`` tokens left."""
        return not (self.plan.whole_prompts and self.waiting) or self.waiting[0].num_tokens <= budget

    def _admit_next(self) -> bool:
        """Admit the first waiting sequence if its prompt fits beside what the others still need."""
        if not self.waiting or len(self.running) >= self.plan.max_sequences:
            return False
        sequence, need = self.waiting[0], 0
        if self.running:
            # one page more: the sequence's first decode steps must not preempt it again
            need = 1 + sum(self._holdings.missing_pages(other, other.num_tokens) for other in self.running)
        if not self._holdings.begin(sequence, need):
            return False
        self.waiting.popleft()
        self.running.append(sequence)
        sequence.status = Status.RUNNING
        if sequence.num_preemptions == 0:
            sequence.cached_len = sequence.computed_len
            self.cached_tokens += sequence.cached_len
        return True

    def _append(self, sequence: Sequence, token: int) -> Ordered[int]:
        """Add a sampled id and those it forces, finish the sequence at its end; return what to emit."""
        if token in sequence.stop_ids:
            self._finish(sequence, "stop")
            return ()
        ids, window = (token, *sequence.forced_ids), self._window(sequence)
        room = len(ids) if sequence.num_keep >= 0 else window - sequence.num_tokens
        if sequence.max_tokens > 0:
            room = min(room, sequence.max_tokens - sequence.output_len)
        sequence.ids.extend(ids[:room])
        is_full = sequence.num_tokens >= window
        is_last = 0 < sequence.max_tokens <= sequence.output_len
        if sequence.is_complete and len(ids) <= room:
            self._finish(sequence, "stop")
        elif is_last or len(ids) > room or (is_full and sequence.num_keep < 0):
            self._finish(sequence, "length")
        elif is_full:
            self._shift(sequence)
        sequence.forced_ids = ()
        return ids[:room]

    def _window(self, sequence: Sequence) -> int:
        window = self.plan.context_tokens
        return min(sequence.window_tokens, window) if sequence.window_tokens > 0 else window

    def _shift(self, sequence: Sequence) -> None:
        """Drop half of the ids behind the kept ones until there is room; what is left is computed anew."""
        self._release(sequence)
        window = self._window(sequence)
        while (size := sequence.num_tokens) >= window:
            keep = min(sequence.num_keep, window - 2)
            count = max((size - keep) // 2, 1)
            del sequence.ids[keep : keep + count]
            sequence.num_shifted += count
        sequence.status, sequence.computed_len = Status.WAITING, 0
        sequence.num_preemptions += 1
        if self.running:  # it is the next to be admitted, behind all that run
            sequence.order = self.running[-1].order
        self.waiting.appendleft(sequence)

    def _release(self, sequence: Sequence) -> None:
        """Take ``sequence`` off what runs, if it does."""
        if sequence.status is not Status.RUNNING:
            return
        self._holdings.end(sequence)
        self.running.remove(sequence)

    def _preempt(self, sequence: Sequence) -> None:
        self._release(sequence)
        sequence.status = Status.WAITING
        sequence.computed_len = 0
        sequence.num_preemptions += 1
        self.waiting.appendleft(sequence)

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        if sequence.status is Status.WAITING:
            self.waiting.remove(sequence)
        self._release(sequence)
        sequence.status = Status.FINISHED
        sequence.finish_reason = reason
        del self._by_id[sequence.request_id]
        self._finished.append(sequence)

    def check(self) -> None:
        """Assert what holds between steps; raises AssertionError with the fact that does not."""
        self._holdings.check(self.running)
        for sequence in self.running:
            assert 0 <= sequence.computed_len <= sequence.num_tokens <= self.plan.context_tokens
        for sequence in self.waiting:
            assert sequence.slot == -1
            assert sequence.status is Status.WAITING and sequence.computed_len == 0
            assert not sequence.pages and sequence.node is None
        orders = [sequence.order for sequence in (*self.running, *self.waiting)]
        assert orders == sorted(orders), "not in order of arrival"
        assert len(self.running) <= self.plan.max_sequences
        assert len(self._by_id) == len(orders)
