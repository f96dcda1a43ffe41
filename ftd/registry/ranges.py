"""A set of byte ranges, kept as sorted half-open intervals that neither touch nor overlap."""

import bisect
from collections.abc import Iterable, Iterator


class RangeSet:
    """Which bytes of a file are there. Not thread safe."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self.num_bytes = 0
        for start, end in ranges:
            self.add(start, end)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._ends, strict=True)

    def add(self, start: int, end: int) -> None:
        """Add ``[start, end)``; overlap with what is there is fine."""
        if start >= end:
            return
        first = bisect.bisect_left(self._ends, start)
        last = bisect.bisect_right(self._starts, end)
        if first < last:
            start, end = min(start, self._starts[first]), max(end, self._ends[last - 1])
        self._replace(first, last, [(start, end)])

    def remove(self, start: int, end: int) -> None:
        """Remove ``[start, end)``; bytes that are not there are fine."""
        if start >= end:
            return
        first = bisect.bisect_right(self._ends, start)
        last = bisect.bisect_left(self._starts, end)
        if first >= last:
            return
        pieces = [(self._starts[first], start), (end, self._ends[last - 1])]
        self._replace(first, last, [piece for piece in pieces if piece[0] < piece[1]])

    def gaps(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the ranges of ``[start, end)`` that are missing, in order."""
        found = []
        for held_start, held_end in self:
            if held_end <= start or held_start >= end:
                continue
            if held_start > start:
                found.append((start, held_start))
            start = held_end
        if start < end:
            found.append((start, end))
        return found

    def front(self, start: int = 0) -> int:
        """Return the end of the run of bytes that are there from ``start`` on."""
        index = bisect.bisect_right(self._starts, start) - 1
        return max(start, self._ends[index]) if index >= 0 else start

    def _replace(self, first: int, last: int, pieces: list[tuple[int, int]]) -> None:
        self.num_bytes -= sum(self._ends[first:last]) - sum(self._starts[first:last])
        self.num_bytes += sum(end - start for start, end in pieces)
        self._starts[first:last] = [start for start, _ in pieces]
        self._ends[first:last] = [end for _, end in pieces]
