"""Range sets, checked against plain sets of integers."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from ftd.registry.ranges import RangeSet

SIZE = 40
spans = st.tuples(st.integers(0, SIZE), st.integers(0, SIZE))
changes = st.lists(st.tuples(st.booleans(), spans), max_size=30)


@settings(deadline=None)
@given(changes, spans)
def test_a_range_set_is_a_set_of_integers(
    operations: list[tuple[bool, tuple[int, int]]], window: tuple[int, int]
) -> None:
    ranges, model = RangeSet(), set[int]()
    for is_add, (start, end) in operations:
        (ranges.add if is_add else ranges.remove)(start, end)
        model = model | set(range(start, end)) if is_add else model - set(range(start, end))
    held = list(ranges)
    assert {byte for start, end in held for byte in range(start, end)} == model
    assert ranges.num_bytes == len(model)
    assert all(start < end for start, end in held)
    assert all(end < start for (_, end), (start, _) in itertools.pairwise(held))
    gaps = ranges.gaps(*window)
    assert {byte for start, end in gaps for byte in range(start, end)} == set(range(*window)) - model
    front = ranges.front(window[0])
    assert set(range(window[0], front)) <= model
    assert front not in model


def test_neighbours_become_one() -> None:
    ranges = RangeSet([(0, 3), (6, 9)])
    ranges.add(3, 6)
    assert list(ranges) == [(0, 9)]


def test_a_hole_in_the_middle_makes_two() -> None:
    ranges = RangeSet([(0, 9)])
    ranges.remove(3, 6)
    assert (list(ranges), ranges.gaps(0, 12)) == ([(0, 3), (6, 9)], [(3, 6), (9, 12)])
