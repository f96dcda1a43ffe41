"""Makes runners; the first of them may have been prepared before the daemon was there."""

import asyncio
from collections.abc import Callable, Sequence

from ftd.daemon.runner import Runner

# A prepared process that nobody has needed for this long gives its memory back
SPARE_S = 60.0


class Runners:
    """Makes a runner for each load, on the event loop. Whoever made the spare one ends it."""

    def __init__(self, command: Sequence[str], log_level: str) -> None:
        self._command = tuple(command)
        self._log_level = log_level
        self._spare: Runner | None = None
        self._parting: asyncio.Task[None] | None = None

    def adopt(self, spare: Runner, keep_s: float = SPARE_S) -> None:
        """Take a runner that is prepared, for the next load if that comes within ``keep_s``."""
        self._spare = spare
        asyncio.get_running_loop().call_later(keep_s, self._part)

    def _part(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            self._parting = asyncio.create_task(spare.stop())

    def make(self, on_exit: Callable[[], None]) -> Runner:
        """Return a runner that has loaded nothing."""
        spare, self._spare = self._spare, None
        if spare is not None and spare.death is None:
            spare.on_exit = on_exit
            return spare
        return Runner(self._command, on_exit, self._log_level)
