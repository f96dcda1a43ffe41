"""How misses are split between card and processor: what was asked for, measured, kept, and corrected."""

from types import SimpleNamespace
from typing import Any

import pytest

from ftd.engine import card_experts, expert_store
from ftd.engine.card_experts import PROMPT_TOKENS, CardExperts
from ftd.engine.expert_plan import ExpertNeeds
from ftd.engine.expert_tuner import DIRECTIONS, Tuner
from ftd.kernels.expert_split import NUM_SIZES, Point, Split, search, tabulate

NEEDS = ExpertNeeds(num_layers=3, num_experts=8, record_bytes=1000)
COUNTS = {
    "uses": 100,
    "hits": 60,
    "fills": 10,
    "warm_fills": 5,
    "ahead_fills": 7,
    "transient_fills": 3,
    "staged": 16,
    "on_cpu": 25,
    "shared": 4,
}


@pytest.fixture(autouse=True)
def isa(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor without units for many rows, whatever the machine has."""
    monkeypatch.setattr(card_experts, "isa_in_force", lambda: "avx2")


class FakePool:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.is_locked = True
        self.lock_refusal: str | None = None
        self.formats = {"q4_0", "f32"}
        self.config = SimpleNamespace(num_slots=9)
        self.worker_ns = 77
        self.quotas: list[tuple[Any, Any]] = []
        self.processor: tuple[Any, ...] | None = None
        self.shares: list[Any] = []
        self.ahead: list[int] = []

    def use_processor(self, *arguments: Any) -> None:
        self.processor = arguments

    def set_quota(self, quota: Any, warm: Any = None) -> None:
        self.quotas.append((quota, warm))

    def set_ahead(self, misses: int) -> None:
        self.ahead.append(misses)

    def share_prompts(self, share_of: Any) -> None:
        self.shares.append(share_of)

    def counters(self) -> dict[str, int]:
        return COUNTS

    def quota_of_one(self) -> list[int]:
        return [0, 1, 2, 2, 3, 3, 3, 4, 4]


def measured(fetched_us: float = 50.0) -> Split:
    """A machine that fetches an expert in so long, and runs one in 60 us, both beside each other."""
    return search(
        lambda tokens, misses, fetched: 1e-6 * max(fetched_us * fetched, 60.0 * (misses - fetched)) + 1e-6,
        {1: (1, 2, 4, 8)},
        NEEDS.num_experts,
    )


class Made:
    """The experts of a model, and all that they met."""

    def __init__(self, name: str = "cuda", **load: Any) -> None:
        self.pool = FakePool()
        self.num_measured = 0
        self.made_with: Any = None
        fields = {"experts": "auto", "experts_policy": "ftd", "precision": "fast", **load}
        self.threads: Any = SimpleNamespace(num_threads=4)
        rates = SimpleNamespace(fetch=lambda pool: 20e9, experts=self.measure)
        device: Any = SimpleNamespace(name=name, label="a card", make_experts=self.make, rates=rates)
        config: Any = SimpleNamespace(experts=SimpleNamespace(num_chosen=2), hidden_size=64)
        made_load: Any = SimpleNamespace(**fields)
        self.experts = CardExperts(device, NEEDS, 9, config, made_load, self.threads, "kept")

    def make(self, *arguments: Any) -> FakePool:
        self.made_with = arguments
        return self.pool

    def measure(self, pool: FakePool, num_chosen: int) -> Split:
        assert pool is self.pool and num_chosen == 2
        self.num_measured += 1
        return measured()


def test_the_pool_is_made_of_what_the_model_needs() -> None:
    made = Made()
    needs, num_slots, num_chosen, policy, kept = made.made_with
    assert (needs, num_slots, num_chosen, kept) == (NEEDS, 9, 2, "kept")
    assert policy.residency == "decayed" and not policy.is_paper
    assert made.pool.processor == (made.threads, 64, "fast", 0)


@pytest.mark.parametrize(
    ("load", "tokens"),
    [
        ({}, PROMPT_TOKENS),
        ({"precision": "f32"}, 0),
        ({"experts": "split=0.5"}, 0),
        ({"experts_policy": "paper"}, 0),
    ],
)
def test_a_processor_with_units_for_many_rows_takes_a_part_of_long_steps(
    load: dict[str, Any], tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where that is measured; what was measured without it is not taken for it."""
    without = Made(**load).experts._key()
    monkeypatch.setattr(card_experts, "isa_in_force", lambda: "amx")
    made = Made(**load)
    assert made.pool.processor is not None and made.pool.processor[3] == tokens
    assert made.experts._key() != without
    assert ("long steps too" in made.experts._key()) == (tokens > 0)


def test_how_many_experts_of_a_long_step_it_takes_is_what_was_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And what was kept: an expert is staged in 100 us and run in 50, so that of three it takes two."""
    monkeypatch.setattr(card_experts, "isa_in_force", lambda: "amx")
    points = [
        Point(tokens=256, misses=n, fetched=0, seconds=n * 5e-5, fetch_seconds=n * 1e-4, run_seconds=n * 5e-5)
        for n in (2, 4)
    ]
    table = tabulate([*measured().points, *points], NEEDS.num_experts)
    first = Made()
    first.measure = lambda pool, num_chosen: table  # type: ignore[method-assign]
    first.experts._rates.experts = first.measure  # type: ignore[misc]
    first.experts.split()
    second = Made()
    second.experts.split()
    assert second.num_measured == 0
    for made in (first, second):
        (share_of,) = made.pool.shares
        assert [share_of(256, missing) for missing in range(4)] == [0, 1, 1, 2]


@pytest.mark.parametrize(
    ("experts", "quota"),
    [
        ("fill", list(range(9))),
        ("cpu", [0] * 9),
        ("split=0.5", [0, 0, 1, 2, 2, 2, 3, 4, 4]),  # halves to the even number
        ("split=0.25", [0, 0, 0, 1, 1, 1, 2, 2, 2]),
    ],
)
def test_what_the_load_asks_for_is_taken(experts: str, quota: list[int]) -> None:
    made = Made(experts=experts)
    made.experts.split()
    assert made.pool.quotas == [(quota, None)] and not made.num_measured
    assert (made.pool.processor is None) == (experts == "fill"), "nothing runs there then"
    made.experts.observe(1, 10**6)
    assert len(made.pool.quotas) == 1, "nor is it corrected"


def test_a_machine_is_measured_once() -> None:
    first = Made()
    first.experts.split()
    table = measured()
    assert first.pool.quotas == [(table.quota, table.warm)] and first.num_measured == 1
    second = Made()
    second.experts.split()
    assert second.pool.quotas == first.pool.quotas and second.num_measured == 0
    other = Made(precision="f32")
    other.experts.split()
    assert other.num_measured == 1, "other times were measured"


@pytest.mark.parametrize("change", ["version", "label", "threads", "record", "formats"])
def test_a_key_names_all_that_times_depend_on(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Made().experts, Made()
    assert first._key() == second.experts._key()
    if change == "version":
        before = first._key()
        monkeypatch.setattr(card_experts.ftd, "__version__", "99")
        assert second.experts._key() != before
        return
    if change == "label":
        second.experts._device.label = "another"  # type: ignore[misc]
    elif change == "threads":
        second.threads.num_threads = 5
    elif change == "record":
        second.experts._needs = ExpertNeeds(num_layers=3, num_experts=8, record_bytes=1001)
    else:
        second.pool.formats = {"q8_0"}
    assert first._key() != second.experts._key()


def test_the_paper_splits_by_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card_experts.bandwidth, "measure", lambda num_threads: 10e9 * num_threads)
    made = Made(experts_policy="paper")
    made.experts.split()
    assert made.pool.quotas == [([0, 1, 1, 2, 2, 2, 3, 4, 4], None)]  # half, at least one
    assert not made.num_measured


def test_where_memory_cannot_be_locked_all_runs_on_the_processor_and_people_hear_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = Made()
    assert made.experts.notes() == []
    made.pool.is_locked, made.pool.lock_refusal = False, "CUDA error 2 for 8000 bytes"
    made.experts.split()
    assert made.pool.quotas == [] and not made.num_measured
    (note,) = made.experts.notes()
    assert "CUDA error 2 for 8000 bytes" in note and "ulimit -l" in note
    assert "CUDA error 2 for 8000 bytes" in caplog.text


class Script(Tuner):
    """A tuner that says what the test wants."""

    def __init__(self, *moves: tuple[int, int, bool]) -> None:
        super().__init__()
        self.moves = list(moves)

    def observe(self, step_ns: int) -> bool:
        if not self.moves:
            return False
        self.shift, self.best, ended = self.moves.pop(0)
        self._direction = len(DIRECTIONS) if ended else 0
        return True


def test_only_steps_of_one_token_correct_and_only_their_row() -> None:
    made = Made()
    made.experts.split()
    made.experts._tuner = Script((1, 0, False), (1, 1, True))
    made.experts.observe(2, 10**6)
    assert len(made.pool.quotas) == 1
    made.experts.observe(1, 10**6)
    (before, _), (after, warm) = made.pool.quotas
    assert after[1:] == before[1:] and len(after) == NUM_SIZES and warm == measured().warm
    mixtures = [(m, q) for m, q in enumerate(before[0]) if 0 < q < m]
    assert mixtures and all(after[0][m] == min(q + 1, m - 1) for m, q in mixtures)
    assert [after[0][m] for m, q in enumerate(before[0]) if q in (0, m)] == [
        q for m, q in enumerate(before[0]) if q in (0, m)
    ], "where all or none are fetched that stays"


def test_what_turned_out_best_is_kept_for_the_next_load() -> None:
    made = Made()
    made.experts.split()
    made.experts._tuner = Script((1, 1, True))
    made.experts.observe(1, 10**6)
    again = Made()
    again.experts.split()
    assert again.num_measured == 0
    kept = expert_store.read(made.experts._key(), 8)
    assert kept is not None
    assert [point.fetched for point in kept] == [made.pool.quotas[-1][0][0][m] for m in (1, 2, 4, 8)]
    assert all(isinstance(point, Point) for point in kept)


def test_only_a_card_is_corrected() -> None:
    made = Made("interpreter")
    made.experts.split()
    for _ in range(1000):
        made.experts.observe(1, 10**6)
    assert len(made.pool.quotas) == 1


def test_what_the_pool_counted_in_bytes() -> None:
    assert Made().experts.stats() == {
        "expert_slots": 9,
        "expert_reads": 100,
        "expert_hits": 60,
        "expert_fills": 22,
        "expert_transient_fills": 3,
        "experts_on_cpu": 25,
        "expert_copied_bytes": (10 + 5 + 7 + 3 + 16) * 1000,
        "expert_cpu_bytes": (25 + 4) * 1000,
        "expert_cpu_ns": 77,
        "expert_split": [1, 2],
    }
