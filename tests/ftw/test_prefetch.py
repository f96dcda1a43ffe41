"""ftd.ftw.prefetch: order, how far ahead it reads, and errors in their turn."""

from collections.abc import Callable

import pytest

from ftd.ftw.prefetch import prefetched


def test_results_come_in_order() -> None:
    def returning(number: int) -> Callable[[], int]:
        return lambda: number

    for count in (0, 1, 2, 7):
        assert list(prefetched(returning(number) for number in range(count))) == list(range(count))


def test_at_most_one_is_read_ahead() -> None:
    asked: list[int] = []

    def reads() -> object:
        for number in range(5):
            asked.append(number)
            yield lambda number=number: number

    items = prefetched(reads())  # type: ignore[arg-type]
    assert next(items) == 0
    assert asked == [0, 1]
    assert next(items) == 1
    assert asked == [0, 1, 2]


def test_an_error_comes_after_the_items_before_it() -> None:
    def fail() -> int:
        raise KeyError("x")

    items = prefetched([lambda: 1, fail, lambda: 3])
    assert next(items) == 1
    with pytest.raises(KeyError):
        next(items)
