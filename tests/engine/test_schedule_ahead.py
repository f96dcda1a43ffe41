"""Steps launched before the ids of the step before are known, on the slow model of ``test_scheduler``.

Numbers are written when a step is launched, as a card does in the order of its stream, so a page that is
given away too early shows as a wrong number; every text must equal what its sequence gives alone.
"""

from collections.abc import Callable

from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from ftd.engine.batch import Batch
from tests.engine.scheduling import Engine, check_texts, make_plan, workloads


class AheadEngine(Engine):
    """Launches the next step before it advances the one in flight; counts how often that was possible."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.running: tuple[Batch, list[int]] | None = None
        self.num_ahead = 0

    def step(self) -> bool:
        if self.running is None:
            batch = self.scheduler.schedule()
            if batch is None:
                return False
            self.running = batch, self.forward(batch)
        batch, ids = self.running
        self.running = None
        ahead = self.scheduler.schedule_ahead()
        if ahead is not None:
            assert [entry.sequence for entry in ahead.entries] == [entry.sequence for entry in batch.entries]
            self.num_ahead += 1
            self.running = ahead, self.forward_ahead(ahead, ids)
        for sequence, token in self.scheduler.advance(batch, ids):
            self.emitted[sequence.request_id].append(token)
        self.settle()
        return True

    def forward_ahead(self, batch: Batch, ids: list[int]) -> list[int]:
        """Run ``batch`` with the ids that the step before sampled, which its sequences do not have yet."""
        fill: Callable[..., object] = batch.fill
        step = fill(self.arrays)
        self.arrays.ids[: len(ids)] = ids

        class Filled:
            @staticmethod
            def fill(_: object) -> object:
                return step

        return self.forward(Filled())  # type: ignore[arg-type]


@settings(max_examples=examples(150))
@given(workloads())
def test_every_text_is_the_one_it_is_alone(workload) -> None:  # type: ignore[no-untyped-def]
    check_texts(AheadEngine(workload[0]), workload)


@given(st.integers(3, 12))
def test_a_lone_sequence_runs_ahead_of_all_but_its_last_ids(max_tokens: int) -> None:
    engine = AheadEngine(make_plan(num_pages=20, context=40))
    engine.add(0, [1, 0, 1], max_tokens, stop_id=99)
    engine.run()
    assert len(engine.emitted[0]) == max_tokens
    assert engine.num_ahead == max_tokens - 1


@given(st.integers(5, 12))
def test_a_sequence_that_fills_its_window_runs_ahead_of_all_but_its_last_ids(window: int) -> None:
    engine = AheadEngine(make_plan(num_pages=20, context=window))
    engine.add(0, [1, 0, 1], stop_id=99)
    engine.run()
    assert len(engine.emitted[0]) == window - 3
    assert engine.num_ahead == window - 3 - 1


def test_nothing_runs_ahead_while_somebody_waits_or_pages_are_gone() -> None:
    engine = AheadEngine(make_plan(num_pages=10, max_sequences=1))
    engine.add(0, [1, 0], 5, stop_id=99)
    engine.add(1, [0, 1], 5, stop_id=99)
    engine.step()
    assert engine.num_ahead == 0
    engine.run()
    assert engine.num_ahead > 0 and len(engine.emitted[1]) == 5
