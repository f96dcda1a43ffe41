"""Corrects the split of missing experts while it serves: one more or one less is fetched, tried side by side.

    window of the table in force │ window of the other │ in force │ other │ …     PAIRS pairs

The other is taken only if it won every pair and by a margin; the first that it loses ends the trial, so that
where nothing is gained little is tried. A trial moves the shift one further in its
direction or closes that direction, and a closed one stays closed: after at most 3 · MAX_SHIFT + 2 trials none
is left and the table stays. So it cannot oscillate, whatever the times are.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

WINDOW_STEPS = 32
PAIRS = 8
MIN_GAIN = 0.02
MAX_SHIFT = 2
# The first steps after a load or a switch of tables belong to neither
SETTLE_STEPS = 4
DIRECTIONS = (1, -1)


def shifted(quota: Sequence[int], shift: int) -> list[int]:
    """Return ``quota`` with ``shift`` more of m misses fetched where that leaves a mixture a mixture.

    Where all or none are fetched that stays: it was better by more than one expert.
    """
    return [q if q in (0, misses) else min(max(q + shift, 1), misses - 1) for misses, q in enumerate(quota)]


@dataclass(slots=True)
class Tuner:
    """Decides which shift is in force from the nanoseconds of steps of one token; ``shift`` says which."""

    shift: int = 0
    best: int = 0
    num_trials: int = 0
    _direction: int = 0  # place in DIRECTIONS; past the end nothing is tried
    _steps: int = 0
    _window: list[int] = field(default_factory=list)
    _pairs: list[tuple[float, float]] = field(default_factory=list)
    _first: float = 0.0

    @property
    def has_ended(self) -> bool:
        """Whether the shift stays as it is."""
        return self._direction == len(DIRECTIONS)

    def observe(self, step_ns: int) -> bool:
        """Take the time of one step; return whether ``shift`` has changed."""
        if self.has_ended:
            return False
        self._steps += 1
        if self._steps > SETTLE_STEPS:
            self._window.append(step_ns)
        if len(self._window) < WINDOW_STEPS:
            return False
        took, self._steps, self._window = median(self._window), 0, []
        if self.shift == self.best:
            self._first = took
            self.shift = self.best + DIRECTIONS[self._direction]
            return True
        self._pairs.append((self._first, took))
        self.shift = self.best
        if len(self._pairs) == PAIRS or took >= self._first:
            self._decide()
        return True

    def _decide(self) -> None:
        direction = DIRECTIONS[self._direction]
        gains = [1 - other / first for first, other in self._pairs]
        self.num_trials += 1
        self._pairs = []
        is_better = min(gains) > 0 and median(gains) >= MIN_GAIN
        if is_better:
            self.best = self.shift = self.best + direction
        if not is_better or abs(self.best + direction) > MAX_SHIFT:
            self._direction += 1
