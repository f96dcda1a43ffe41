"""What the manager knows of the engine that is loaded, of who uses it and of who waits for one."""

import asyncio

import msgspec

from ftd.daemon.load_spec import LoadSpec
from ftd.daemon.runner import Runner
from ftd.engine.messages import Memory, Ready


class LoadedModel(msgspec.Struct, frozen=True, kw_only=True):
    """One row of ``ps``. ``expires_at`` is seconds since the epoch, None for never."""

    spec: LoadSpec
    size_bytes: int
    size_vram_bytes: int
    context_tokens: int
    expires_at: float | None
    is_loading: bool
    pid: int | None
    memory: Memory | None = None


class Lease(msgspec.Struct, frozen=True):
    """The right to use an engine until released. ``context_tokens`` is the window of one request on it."""

    runner: Runner
    context_tokens: int


class Waiter(msgspec.Struct, eq=False):
    """A request for a model, until it is granted or refused."""

    spec: LoadSpec
    keep_alive_ns: int | None
    granted: "asyncio.Future[LoadedEngine]"


class LoadedEngine(msgspec.Struct, eq=False):
    """A runner and how long it stays. ``is_doomed``: idle, about to be unloaded, serves nobody."""

    spec: LoadSpec
    runner: Runner
    keep_alive_ns: int
    asked_tokens: int
    max_sequences: int
    num_leases: int = 0
    is_doomed: bool = False
    timer: asyncio.TimerHandle | None = None

    @property
    def ready(self) -> Ready:
        """What the engine said when it had loaded."""
        assert self.runner.ready is not None
        return self.runner.ready

    def serves(self, spec: LoadSpec) -> bool:
        """A smaller or absent window is served by what is loaded; a larger one is not."""
        return self._runs(spec) and spec.needed_tokens <= max(self.asked_tokens, self.ready.context_tokens)

    def can_grow_for(self, spec: LoadSpec) -> bool:
        """Whether a larger window is all that ``spec`` wants and this engine lacks; it must be idle."""
        return self._runs(spec) and self.ready.device == "cpu"

    def _runs(self, spec: LoadSpec) -> bool:
        """Return whether this is the model of ``spec``, whatever its window."""
        return (
            self.runner.is_alive
            and not self.is_doomed
            and spec.key == self.spec.key
            and spec.num_threads in (0, self.spec.num_threads)
            and spec.device in ("", "auto", self.ready.device)
        )
