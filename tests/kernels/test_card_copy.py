"""The rates of copies: what is copied, and bytes a second by a clock that the test moves."""

from typing import Any

import pytest
import torch

from ftd.kernels import card_copy

NUM_BYTES = 1000


class Clock:
    """Stands in for a card: each copy takes the next of ``times_ms``, and events say what the clock says."""

    def __init__(self, times_ms: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms, self.copies, self.made = 0.0, 0, []
        self._times_ms = iter(times_ms)
        empty = torch.empty

        def make(size: int, **options: Any) -> Any:
            self.made.append((size, options))
            return empty(size, dtype=options["dtype"])

        def copy(target: Any, source: Any, non_blocking: bool) -> None:
            assert non_blocking and len(target) == len(source)
            self.copies += 1
            self.now_ms += next(self._times_ms)

        monkeypatch.setattr(torch, "empty", make)
        monkeypatch.setattr(
            torch, "empty_like", lambda like: make(len(like), dtype=like.dtype, device="cuda")
        )
        monkeypatch.setattr(torch.Tensor, "copy_", copy)
        monkeypatch.setattr(torch.cuda, "Event", self.event)

    def event(self, enable_timing: bool) -> Any:
        assert enable_timing
        return Event(self)


class Event:
    """A time on a ``Clock``."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self.ms = clock, -1.0

    def record(self) -> None:
        self.ms = self._clock.now_ms

    def synchronize(self) -> None:
        assert self.ms >= 0

    def elapsed_time(self, end: "Event") -> float:
        return end.ms - self.ms


# The first two warm up; the median of the others is 4
TIMES_MS = [900.0, 800.0, 4, 1, 9, 4, 700, 2, 5]


def test_a_copy_on_the_card_reads_and_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(TIMES_MS, monkeypatch)
    assert card_copy.device_rate(NUM_BYTES) == pytest.approx(2 * NUM_BYTES / 4e-3)
    assert clock.copies == len(TIMES_MS)
    assert [options["device"] for _, options in clock.made] == ["cuda", "cuda"]


def test_a_copy_from_the_host_is_of_locked_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(TIMES_MS, monkeypatch)
    assert card_copy.host_rate(NUM_BYTES) == pytest.approx(NUM_BYTES / 4e-3)
    places = {
        options.get("device", "locked" if options.get("pin_memory") else "") for _, options in clock.made
    }
    assert places == {"cuda", "locked"}
    assert {size for size, _ in clock.made} == {NUM_BYTES}
