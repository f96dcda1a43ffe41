"""A scheduler under an engine whose tokens are numbers: what tests of scheduling, holdings and slots share.

``alone`` says which text a request has by itself; ``check_texts`` serves a workload and compares.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from ftd.engine.batch import Batch, StepArrays
from ftd.engine.pages import PagePool
from ftd.engine.plan import Plan
from ftd.engine.prefix_cache import PrefixCache
from ftd.engine.scheduler import Scheduler
from ftd.engine.sequence import Sequence

VOCABULARY = 5
STOP_ID = 4


def make_plan(
    *,
    page_size: int = 2,
    num_pages: int = 12,
    max_sequences: int = 3,
    context: int = 20,
    chunk: int = 6,
    whole: bool = False,
) -> Plan:
    return Plan(
        page_size=page_size,
        num_pages=num_pages,
        max_sequences=max_sequences,
        context_tokens=context,
        prefill_chunk_tokens=chunk,
        weight_bytes=0,
        kv_bytes=0,
        workspace_bytes=0,
        whole_prompts=whole,
    )


def mix(value: int, token: int, position: int) -> int:
    """K and V of a token: depends on its id, its place and all that came before."""
    return (value * 1_000_003 + token * 97 + position + 1) % 2_147_483_647


def sample(value: int) -> int:
    return value // 7 % VOCABULARY


def alone(prompt: list[int], max_tokens: int, window: int, stop_id: int = STOP_ID) -> tuple[list[int], str]:
    """The output and the reason of one sequence run by itself."""
    ids, value = list(prompt), 0
    for position, token in enumerate(ids):
        value = mix(value, token, position)
    while True:
        token = sample(value)
        if token == stop_id:
            return ids[len(prompt) :], "stop"
        ids.append(token)
        if len(ids) - len(prompt) == max_tokens or len(ids) == window:
            return ids[len(prompt) :], "length"
        value = mix(value, token, len(ids) - 1)


@dataclass
class Engine:
    """Runs batches with ``mix`` as the network; checks every invariant after each step."""

    plan: Plan
    emitted: dict[int, list[int]] = field(default_factory=dict)
    finished: dict[int, Sequence] = field(default_factory=dict)
    num_steps: int = 0
    num_tokens: int = 0

    def __post_init__(self) -> None:
        self.pool = PagePool(self.plan.num_pages)
        self.cache = PrefixCache(self.pool, self.plan.page_size)
        self.scheduler = Scheduler(self.plan, self.pool, self.cache)
        self.arrays = StepArrays(self.plan)
        self.kv = np.full(self.plan.num_pages * self.plan.page_size, -1, np.int64)

    def add(
        self,
        request_id: int,
        prompt: list[int],
        max_tokens: int = 0,
        salt: str = "",
        stop_id: int = STOP_ID,
        num_keep: int = -1,
        window: int = 0,
    ) -> Sequence:
        sequence = Sequence.from_prompt(
            request_id,
            prompt,
            max_tokens=max_tokens,
            stop_ids=frozenset([stop_id]),
            cache_salt=salt,
            num_keep=num_keep,
            window_tokens=window,
        )
        self.scheduler.add(sequence)
        self.emitted[request_id] = []
        return sequence

    def forward(self, batch: Batch) -> list[int]:
        """Compute and store every token's number from the numbers read through the page table."""
        step = batch.fill(self.arrays)
        size, last = self.plan.page_size, []
        assert len(set(step.kv_index.tolist())) == len(step.kv_index), "two tokens write to one place"
        for b in range(len(step.kv_len)):
            rows = range(step.q_start[b], step.q_start[b + 1])
            for row in rows:
                position = int(step.positions[row])
                assert position == step.kv_len[b] - (rows.stop - row)
                before = position - 1
                place = step.page_table[b, before // size] * size + before % size
                value = mix(int(self.kv[place]) if position else 0, int(step.ids[row]), position)
                assert step.kv_index[row] == step.page_table[b, position // size] * size + position % size
                self.kv[step.kv_index[row]] = value
                last.append(value)
        return [sample(last[row]) for row in step.logit_rows]

    def step(self) -> bool:
        decoding = [s for s in self.scheduler.running if not s.is_prefill]
        preemptions = [s.num_preemptions for s in decoding]
        batch = self.scheduler.schedule()
        if batch is None:
            return False
        in_batch = {entry.sequence for entry in batch.entries}
        for sequence, before in zip(decoding, preemptions, strict=True):
            assert sequence in in_batch or sequence.num_preemptions > before, "decode was starved"
        num_prefill = sum(e.num_tokens for e in batch.entries if e.sequence.is_prefill)
        assert num_prefill <= self.plan.prefill_chunk_tokens
        assert batch.num_tokens <= self.plan.max_step_tokens
        for sequence, token in self.scheduler.advance(batch, self.forward(batch)):
            self.emitted[sequence.request_id].append(token)
        self.num_steps += 1
        self.num_tokens += batch.num_tokens
        assert self.scheduler.num_steps == self.num_steps
        assert self.scheduler.prefill_tokens + self.scheduler.decode_tokens == self.num_tokens
        self.settle()
        return True

    def settle(self) -> None:
        for sequence in self.scheduler.take_finished():
            assert sequence.request_id not in self.finished
            self.finished[sequence.request_id] = sequence
        self.scheduler.check()

    def run(self, max_steps: int = 5000) -> None:
        for _ in range(max_steps):
            if not self.step():
                return
        raise AssertionError("sequences starve")


PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=19)


@st.composite
def workloads(draw: st.DrawFn) -> tuple[Plan, list[tuple[list[int], int, str]], list[tuple[int, int]]]:
    page_size = draw(st.integers(1, 5))
    window_pages = -(-20 // page_size)
    plan = make_plan(
        page_size=page_size,
        num_pages=draw(st.integers(window_pages, 3 * window_pages)),
        max_sequences=draw(st.integers(1, 4)),
        chunk=draw(st.integers(1, 20)),
    )
    requests = draw(
        st.lists(st.tuples(PROMPTS, st.integers(0, 12), st.sampled_from(["", "a"])), min_size=1, max_size=12)
    )
    # (after which step, which request) to abort
    aborts = draw(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 11)), max_size=4))
    return plan, requests, aborts


def check_texts(  # type: ignore[no-untyped-def]
    engine: Engine, workload, before_step: Callable[[int], None] = lambda step: None
) -> None:
    """Serve a workload; each text is the one it is alone, and nothing is left behind."""
    plan, requests, aborts = workload
    for i, (prompt, max_tokens, salt) in enumerate(requests[:6]):
        engine.add(i, prompt, max_tokens, salt)
    aborted = set()
    for step in range(31):
        if step == 5:
            for i, (prompt, max_tokens, salt) in enumerate(requests[6:], 6):
                engine.add(i, prompt, max_tokens, salt)
        for at, i in aborts:
            if at == step and engine.scheduler.abort(i):
                aborted.add(i)
        before_step(step)
        engine.settle()
        engine.step()
    engine.run()
    assert engine.finished.keys() == set(range(len(requests)))
    for i, (prompt, max_tokens, _) in enumerate(requests):
        output, reason = alone(prompt, max_tokens, plan.context_tokens)
        if i in aborted:
            assert engine.emitted[i] == output[: len(engine.emitted[i])]
            assert engine.finished[i].finish_reason == "abort"
        else:
            assert (engine.emitted[i], engine.finished[i].finish_reason) == (output, reason)
    assert engine.pool.num_live == 0 and engine.cache.num_locked == 0
    engine.cache.clear()
    assert engine.pool.num_free == plan.num_pages


def alone_shifting(prompt: list[int], max_tokens: int, window: int, num_keep: int) -> tuple[list[int], int]:
    """The output of one sequence whose oldest ids leave a full window, and how many left; never cached."""
    ids, output, shifted = list(prompt), [], 0
    while len(output) < max_tokens:
        value = 0
        for position, token in enumerate(ids):
            value = mix(value, token, position)
        output.append(sample(value))
        ids.append(output[-1])
        if len(output) < max_tokens and len(ids) == window:
            keep = min(num_keep, window - 2)
            count = max((window - keep) // 2, 1)
            ids = ids[:keep] + ids[keep + count :]
            shifted += count
    return output, shifted
