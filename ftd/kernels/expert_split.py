"""How many of m missing experts are fetched and how many run on the processor: the table that ``auto`` takes.

It is searched, not derived: ``seconds(tokens, misses, fetched)`` says how long a layer takes with everything
that a step has, fixed costs and both paths beside each other, and the best number of those tried is taken.
Fetching none and fetching all are always tried, so the table is never slower than the better of these where
it was measured. More tokens cost the processor time for each of their rows but a fetch nothing, so steps of
1, 4, 16, 64 and 128 tokens have rows of their own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

Seconds = Callable[[int, int, int], float]

# Tokens of a step, and the numbers of misses at which its layers are measured; q is interpolated between.
POINTS: dict[int, tuple[int, ...]] = {
    1: (1, 2, 3, 4, 5, 6, 7, 8),
    4: (1, 2, 3, 4, 6, 8, 16, 32),
    16: (1, 2, 3, 4, 6, 8, 16, 32, 64),
    64: (1, 2, 4, 8, 16, 32, 64, 128),
    128: (8, 16, 32, 64, 128),
}
MOST_PLACED = max(POINTS)
# Steps of more tokens stage layers: tokens, and how many experts the processor is timed with.
PROMPT_POINTS: dict[int, tuple[int, int]] = {256: (4, 16), 1024: (4, 16), 4096: (4, 16)}
# What a layer does before it knows its experts, and cannot be measured of experts alone, comes on top of the
# processor's time; and what wins less than this stays as it is.
BESIDE, LEAST_GAIN = 1.15, 0.03
# A copy ahead of a layer is hidden by the layer before and by what the next one does before it needs it, and
# being late by less than the processor would take is won too: 30b-a3b takes 65 us without misses (q4_0: 47).
AHEAD_S = 100e-6
# Rows of the tables: of steps of up to 1, 2, 4 … tokens
NUM_SIZES = 10
# Up to so many misses all q are tried.
EXHAUSTIVE = 8
# A mixture must be so much faster than fetching none or all to be taken: it is what varies most.
MARGIN = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One measured layer: seconds of the best split, of fetching all, and of running all."""

    tokens: int
    misses: int
    fetched: int
    seconds: float
    fetch_seconds: float
    run_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The tables [sizes][M + 1] of ``Residency.quota``: row b is of steps of up to 2^b tokens.

    quota: how many of m misses are fetched. warm: how many others at most beside the step, such that copies
    do not pile up. fetch_seconds: of one more fetch. prompts: None where that was not measured.
    """

    quota: list[list[int]]
    warm: list[list[int]]
    points: list[Point]
    fetch_seconds: float
    prompts: "PromptTimes | None" = None

    @property
    def misses_ahead(self) -> int:
        """How many misses at least make a layer so long that a copy for the next one is hidden beside it."""
        times = {0: 0.0} | {point.misses: point.seconds for point in self.points if point.tokens == 1}
        long = [misses for misses, took_s in times.items() if took_s + AHEAD_S >= self.fetch_seconds]
        return min(long, default=max(times))

    def fields(self) -> dict[str, object]:
        """Return what a log says of it."""
        found: dict[str, object] = {
            "fetch_us": round(self.fetch_seconds * 1e6, 1),
            "ahead_from_misses": self.misses_ahead,
        }
        if self.prompts is not None:
            found |= self.prompts.fields()
        for tokens in sorted({point.tokens for point in self.points if point.tokens <= MOST_PLACED}):
            rows = [point for point in self.points if point.tokens == tokens]
            found[f"fetched_at_{tokens}"] = [f"{row.fetched}/{row.misses}" for row in rows]
            last = rows[-1]
            found[f"us_at_{tokens}"] = [
                round(value * 1e6) for value in (last.seconds, last.fetch_seconds, last.run_seconds)
            ]
        return found


class PromptTimes:
    """What a long step's missing experts take, by ``points`` of two numbers of experts for each of tokens.

    A point's fetch_seconds are those of staging its experts, run_seconds those of running them meanwhile.
    """

    def __init__(self, points: list[Point]) -> None:
        self._each_s = sum(point.fetch_seconds for point in points) / sum(point.misses for point in points)
        self._lines: dict[int, tuple[float, float]] = {}
        for tokens in sorted({point.tokens for point in points}):
            its = [point for point in points if point.tokens == tokens]
            first, last = its[0], its[-1]
            each_s = last.run_seconds / last.misses
            if last.misses > first.misses:
                each_s = max(last.run_seconds - first.run_seconds, 0.0) / (last.misses - first.misses)
            self._lines[tokens] = max(first.run_seconds - first.misses * each_s, 0.0), each_s

    def count(self, tokens: int, missing: int) -> int:
        """Return how many of ``missing`` experts of a layer the processor runs in a step of ``tokens``."""
        fixed_s, run_s = self._line(tokens)

        def seconds(count: int) -> float:
            run = BESIDE * (fixed_s + count * run_s) if count else 0.0
            return max((missing - count) * self._each_s, run)

        best = min(range(missing + 1), key=seconds)
        return best if seconds(best) <= (1 - LEAST_GAIN) * seconds(0) else 0

    def _line(self, tokens: int) -> tuple[float, float]:
        """Return the fixed seconds of asking the processor and those of each expert.

        Of more tokens than were measured they grow with the tokens.
        """
        below = max((known for known in self._lines if known <= tokens), default=min(self._lines))
        above = min((known for known in self._lines if known >= tokens), default=max(self._lines))
        part = (tokens - below) / (above - below) if below < above else 0.0
        low, high = self._lines[below], self._lines[above]
        more = max(tokens / max(self._lines), 1.0)
        fixed_s, run_s = (
            more * (first + part * (last - first)) for first, last in zip(low, high, strict=True)
        )
        return fixed_s, run_s

    def fields(self) -> dict[str, object]:
        """Return what a log says of it."""
        found: dict[str, object] = {"stage_us": round(self._each_s * 1e6, 1)}
        for tokens, (fixed_s, run_s) in self._lines.items():
            found[f"run_us_at_{tokens}"] = [round(fixed_s * 1e6), round(run_s * 1e6, 1)]
            found[f"run_at_{tokens}"] = f"{self.count(tokens, 100)}/100"
        return found


def best_fetched(seconds: Callable[[int], float], misses: int) -> tuple[int, dict[int, float]]:
    """Return the q from 0 to ``misses`` that is fastest, and the seconds of all that were tried.

    Few are tried one by one; of many, the interval around the best shrinks by a third a time: the time of
    the slower of two paths falls and then rises.
    """
    tried: dict[int, float] = {}

    def of(count: int) -> float:
        if count not in tried:
            tried[count] = seconds(count)
        return tried[count]

    forced = min((0, misses), key=of)
    if misses <= EXHAUSTIVE:
        for count in range(1, misses):
            of(count)
    else:
        low, high = 0, misses
        while high - low > max(2, misses // 24):
            left, right = low + (high - low) // 3, high - (high - low) // 3
            if of(left) <= of(right):
                high = right
            else:
                low = left
    best = min(tried, key=lambda count: tried[count])
    return (best if tried[best] < (1 - MARGIN) * tried[forced] else forced), tried


def search(seconds: Seconds, points: dict[int, tuple[int, ...]], max_misses: int) -> Split:
    """Return the tables for up to ``max_misses``; ``points`` as POINTS, of tokens that are powers of two."""
    found: list[Point] = []
    for tokens, misses_list in points.items():
        for misses in misses_list:
            if misses > max_misses:
                continue
            best, tried = best_fetched(lambda q, t=tokens, m=misses: seconds(t, m, q), misses)  # type: ignore[misc]
            found.append(
                Point(
                    tokens=tokens,
                    misses=misses,
                    fetched=best,
                    seconds=tried[best],
                    fetch_seconds=tried[misses],
                    run_seconds=tried[0],
                )
            )
    return tabulate(found, max_misses)


def tabulate(points: list[Point], max_misses: int) -> Split:
    """Return the tables that follow from what was measured."""
    by_tokens: dict[int, list[Point]] = {}
    for point in points:
        if point.tokens <= MOST_PLACED:
            by_tokens.setdefault(point.tokens, []).append(point)
    prompts = [point for point in points if point.tokens > MOST_PLACED]
    fixed_s, each_s = _line(by_tokens[min(by_tokens)])
    rows = {
        (tokens - 1).bit_length(): _row(its, max_misses, fixed_s, each_s) for tokens, its in by_tokens.items()
    }
    quota, warm = [], []
    for size in range(NUM_SIZES):
        # Two tokens are measured as four, whose rows go on where those of one end
        above = min((known for known in rows if known >= size), default=max(rows))
        below = max((known for known in rows if 0 < known <= size), default=above)
        if size == 0:
            below = above
        pairs = list(enumerate(zip(rows[below], rows[above], strict=True)))
        quota.append([_mean(low[0], high[0], misses) for misses, (low, high) in pairs])
        warm.append([min(low[1], high[1]) for _, (low, high) in pairs])
    times = PromptTimes(prompts) if prompts else None
    return Split(quota=quota, warm=warm, points=points, fetch_seconds=each_s, prompts=times)


def _mean(low: int, high: int, misses: int) -> int:
    """Return what lies between two rows; forced in one and not in the other stays forced."""
    for forced in (0, misses):
        if forced in (low, high):
            return forced
    return (low + high) // 2


def _line(points: list[Point]) -> tuple[float, float]:
    """Return the fixed seconds of fetching and those of each expert."""
    first, last = points[0], points[-1]
    each_s = last.fetch_seconds / last.misses
    if last.misses > first.misses:
        each_s = (last.fetch_seconds - first.fetch_seconds) / (last.misses - first.misses)
    each_s = max(each_s, 1e-9)
    return max(first.fetch_seconds - first.misses * each_s, 0.0), each_s


def _row(points: list[Point], max_misses: int, fixed_s: float, each_s: float) -> list[tuple[int, int]]:
    """Return (quota, warm) for 0 to ``max_misses`` misses of one number of tokens."""
    known = [_scaled(points[0], 0), *points]
    if known[-1].misses < max_misses:  # beyond what was measured its share goes on
        known.append(_scaled(points[-1], max_misses))
    found = [(0, 1)]
    for low, high in pairwise(known):
        for misses in range(low.misses + 1, high.misses + 1):
            fetched, seconds = _between(low, high, misses)
            spare_s = seconds - fetched * each_s - (fixed_s if fetched else 0.0)
            # Where one more costs nothing that could be measured, all others
            found.append((fetched, max(1, min(max_misses, int(spare_s / each_s)))))
    return found


def _scaled(point: Point, misses: int) -> Point:
    """Return ``point`` for another number of misses, its shares kept."""
    factor = misses / point.misses
    seconds = (point.seconds, point.fetch_seconds, point.run_seconds)
    best_s, fetch_s, run_s = (factor * each for each in seconds)
    fetched = round(factor * point.fetched)
    return Point(
        tokens=point.tokens,
        misses=misses,
        fetched=fetched,
        seconds=best_s,
        fetch_seconds=fetch_s,
        run_seconds=run_s,
    )


def _between(low: Point, high: Point, misses: int) -> tuple[int, float]:
    """Return how many of ``misses`` to fetch and the seconds that it takes, from the points around.

    A mixture is taken between two mixtures alone: elsewhere nothing says that it pays.
    """
    part = (misses - low.misses) / (high.misses - low.misses)

    def line(first: float, last: float) -> float:
        return first + part * (last - first)

    if misses == high.misses:
        return high.fetched, high.seconds
    if 0 < low.fetched < low.misses and 0 < high.fetched < high.misses:
        return round(line(low.fetched, high.fetched)), line(low.seconds, high.seconds)
    fetch_s, run_s = line(low.fetch_seconds, high.fetch_seconds), line(low.run_seconds, high.run_seconds)
    return (misses, fetch_s) if fetch_s < run_s else (0, run_s)
