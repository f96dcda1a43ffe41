"""Reading one step ahead: the next item is read in a thread while its predecessor is hashed and written."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")


def prefetched(reads: Iterable[Callable[[], Item]]) -> Iterator[Item]:
    """Yield what each call returns, in order; at most one call is ahead. Its error is raised in its turn.

    Closing the iterator waits for the call that runs, so files may be closed after it.
    """
    with ThreadPoolExecutor(1, "ftw-ahead") as thread:
        ahead: Future[Item] | None = None
        for read in reads:
            following = thread.submit(read)
            if ahead is not None:
                yield ahead.result()
            ahead = following
        if ahead is not None:
            yield ahead.result()
