"""Pulls, pushes and creates that run: when the daemon ends, so do they, at once and in words.

Answers get some seconds more; these may take hours, and go on where they were when they are asked for again.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from ftd.errors import Busy

Statuses = AsyncGenerator[dict[str, Any], None]


class Transfers:
    """The tasks of those that run. Belongs to one event loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_ending = False

    async def watched(self, statuses: Statuses) -> Statuses:
        """Pass statuses on, in one task; raise Busy when ``end`` is called meanwhile, or was."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            async with aclosing(statuses):
                if self._is_ending:
                    raise self._ended()
                async for status in statuses:
                    yield status
        except asyncio.CancelledError:
            if not self._is_ending or task.uncancel():  # the client left too
                raise
            raise self._ended() from None
        finally:
            self._tasks.discard(task)

    def end(self) -> None:
        """End all of them, and those to come."""
        self._is_ending = True
        for task in self._tasks:
            task.cancel()

    @staticmethod
    def _ended() -> Busy:
        return Busy("the server is shutting down", "ask for it again when it is back")
