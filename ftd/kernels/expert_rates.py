"""How fast experts are fetched and how fast the processor runs them, measured on a model's own records.

    fetching q records    fetch.fixed + q · fetch.each        alone, and while the processor works
    running n experts     run.fixed + n · run.each            alone, and while records are fetched

``quota`` makes of these how many of m misses to fetch: the q that lets the slower of the two paths end first.
Fetching does not take from the processor what a model of one shared bus would say, so both are measured
together.
"""

import time
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch

from ftd.errors import EngineError
from ftd.kernels.expert_mailbox_triton import BELL, DONE, LAYER, TOKENS
from ftd.kernels.expert_pool import ExpertPool

REPEATS = 5
# A ring and its answer cross the bus twice and a kernel waits for them: beside what the processor measures
ROUND_TRIP_S = 6e-6
ANSWER_S = 5.0


@dataclass(frozen=True, slots=True)
class Path:
    """Seconds of one path: fixed, for each expert alone, and for each while the other path works."""

    fixed: float
    each: float
    each_beside: float

    def alone(self, count: int) -> float:
        """Return the seconds of ``count`` experts with nothing beside."""
        return self.fixed + count * self.each if count else 0.0

    def beside(self, count: int) -> float:
        """Return the seconds of ``count`` experts while the other path works."""
        return self.fixed + count * self.each_beside if count else 0.0


@dataclass(frozen=True, slots=True)
class Rates:
    """Both paths; ``record_bytes`` makes bandwidths of them."""

    fetch: Path
    run: Path
    record_bytes: int

    def fields(self) -> dict[str, float]:
        """Return bandwidths in GB/s and fixed costs in microseconds, for logs."""
        found = {}
        for name, path in (("fetch", self.fetch), ("cpu", self.run)):
            found[f"{name}_gb_per_s"] = self.record_bytes / path.each / 1e9
            found[f"{name}_beside_gb_per_s"] = self.record_bytes / path.each_beside / 1e9
            found[f"{name}_fixed_us"] = path.fixed * 1e6
        return found

    def quota(self, max_misses: int) -> tuple[int, ...]:
        """Return for m = 0 … max_misses how many misses to fetch."""
        return tuple(
            min(range(misses + 1), key=lambda q: self.seconds(q, misses)) for misses in range(max_misses + 1)
        )

    def seconds(self, num_fetched: int, misses: int) -> float:
        """Return how long ``misses`` take of which ``num_fetched`` are fetched."""
        if num_fetched in (0, misses):
            return max(self.fetch.alone(num_fetched), self.run.alone(misses - num_fetched))
        return max(self.fetch.beside(num_fetched), self.run.beside(misses - num_fetched))


def measure(pool: ExpertPool, num_chosen: int) -> Rates:
    """Measure both paths of ``pool``; nothing else may use it. Takes a fraction of a second."""
    config = pool.config
    most = min(num_chosen, config.num_experts)
    fetch_one, fetch_many = (_fetch_s(pool, count) for count in (1, most))
    run_one, run_many = (_run_s(pool, count) for count in (1, most))
    fetch_each = max((fetch_many - fetch_one) / max(most - 1, 1), 1e-9)
    run_each = max((run_many - run_one) / max(most - 1, 1), 1e-9)
    fetch_slow, run_slow = _both(pool, most, fetch_many, run_many)
    assert pool.mailbox is not None
    pool.mailbox.sent.fill_(int(pool.mailbox.words[BELL]))  # the card goes on where this left off
    return Rates(
        Path(max(fetch_one - fetch_each, 0.0), fetch_each, fetch_each * fetch_slow),
        Path(max(run_one - run_each, 0.0) + ROUND_TRIP_S, run_each, run_each * run_slow),
        config.record_bytes,
    )


def _fetches(pool: ExpertPool, count: int, rounds: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return arguments of ``fetch``: ``count`` records that no cache holds, and staged slots for them."""
    config = pool.config
    total = config.num_layers * config.num_experts
    number = torch.tensor([count], dtype=torch.int32, device=pool.device)
    found = []
    for turn in range(rounds):
        pairs = [
            ((turn * 97 + i * 31) % total, config.num_slots + i % config.num_staged) for i in range(count)
        ]
        found.append((torch.tensor(pairs, dtype=torch.int32, device=pool.device), number))
    return found


def _fetch_s(pool: ExpertPool, count: int) -> float:
    """Return the seconds that fetching ``count`` records takes."""
    times = []
    for rows, number in _fetches(pool, count, REPEATS + 1):
        if pool.device == "cpu":
            begin_s = time.perf_counter()
            pool.fetch(rows, number)
            times.append(time.perf_counter() - begin_s)
            continue
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        begin.record()
        pool.fetch(rows, number)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return median(times[1:])


def _run_s(pool: ExpertPool, count: int) -> float:
    """Return the seconds that the processor takes for ``count`` experts of one token."""
    times = []
    for turn in range(REPEATS + 1):
        begin_s = time.perf_counter()
        _ring(pool, count, turn)
        times.append(time.perf_counter() - begin_s)
    return median(times[1:])


def _ring(pool: ExpertPool, count: int, turn: int) -> None:
    """Let the processor run ``count`` experts of some layer, as the card would."""
    box, config = pool.mailbox, pool.config
    assert box is not None
    words, on_cpu = box.words.numpy(), box.on_cpu.numpy()
    on_cpu[0] = -1
    on_cpu[0, :count] = (np.arange(count) * 5 + turn * 3) % config.num_experts
    box.weights[0] = 1.0
    box.x[0] = 0.5
    words[TOKENS], words[LAYER] = 1, turn % config.num_layers
    number = int(words[BELL]) + 1
    words[BELL] = number
    end_s = time.perf_counter() + ANSWER_S
    while words[DONE] != number:
        if words[DONE] < 0 or time.perf_counter() > end_s:
            raise EngineError("the workers that run experts on the processor did not answer")


def _both(pool: ExpertPool, count: int, fetch_s: float, run_s: float) -> tuple[float, float]:
    """Return by which factors fetching and running slow each other down."""
    if pool.device == "cpu":
        return 1.0, 1.0
    rounds = max(4, int(0.02 / max(fetch_s, 1e-6)))
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    fetches = _fetches(pool, count, rounds)
    torch.cuda.synchronize()
    begin.record()
    for rows, number in fetches:
        pool.fetch(rows, number)
    end.record()
    times: list[float] = []
    turn = 0
    while not end.query() or not times:  # type: ignore[no-untyped-call]
        begin_s = time.perf_counter()
        _ring(pool, count, turn)
        times.append(time.perf_counter() - begin_s)
        turn += 1
    end.synchronize()
    fetched_s = begin.elapsed_time(end) / 1e3 / rounds
    return max(1.0, fetched_s / fetch_s), max(1.0, median(times) / run_s)
