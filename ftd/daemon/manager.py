"""The manager decides which model is loaded: on demand, one at a time, in order of asking.

One task makes every transition, so there are no locks:

    waiters (FIFO) ──▶ head served by the loaded engine?  yes: grant it and all queued that fit too
                                                          no:  wait for its leases, unload, load, grant
    lease released ──▶ last one: the keep-alive clock starts (0: unload now)
    engine died    ──▶ forget it; the next waiter starts a new one

A load belongs to nobody: it goes on when the client that asked for it leaves. Unloading ends the process.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from msgspec.structs import replace

from ftd import log, machine, units
from ftd.config import Config
from ftd.daemon.load_spec import LoadSpec, default_window, load_message
from ftd.daemon.loaded import Lease, LoadedEngine, LoadedModel, Waiter
from ftd.daemon.runner import Runner
from ftd.daemon.spare import Runners
from ftd.daemon.spawn import WORKER_COMMAND
from ftd.engine.messages import Ready, Stats
from ftd.errors import Busy, EngineError, FtdError
from ftd.names import ModelName
from ftd.units import FOREVER_NS

logger = logging.getLogger(__name__)

STATS_S = 1.0
BUSY_TEXT = "server busy, please try again.  maximum pending requests exceeded"


class ModelManager:
    """Owner of the engine. Made and used on one event loop; ``start`` before use, ``close`` at the end."""

    def __init__(self, config: Config, command: Sequence[str] = WORKER_COMMAND) -> None:
        self._config = config
        self.new_runners = Runners(command, config.server.log_level)
        self._waiters: deque[Waiter] = deque()
        self._wake = asyncio.Event()
        self._is_idle = asyncio.Event()
        self._engine: LoadedEngine | None = None
        self._loading: tuple[LoadSpec, Runner, int] | None = None
        self._runners: set[Runner] = set()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to serve leases."""
        self._task = asyncio.create_task(self._serve())

    async def drain(self, grace_s: float) -> None:
        """Wait until nobody uses the engine, at most so long; then ``close``."""
        self._is_idle.clear()
        if self._engine is not None and self._engine.num_leases:
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self._is_idle.wait()
        await self.close()

    def hurry(self) -> None:
        """Have ``drain`` wait no longer."""
        self._is_idle.set()

    async def close(self) -> None:
        """Refuse those who wait, end the engine process at once; running requests get EngineDied."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        while self._waiters:
            self._refuse(self._waiters.popleft(), Busy("the server is shutting down"))
        self._engine = self._loading = None
        await asyncio.gather(*(runner.stop(grace_s=1.0) for runner in self._runners))

    @asynccontextmanager
    async def lease(self, spec: LoadSpec, keep_alive_ns: int | None = None) -> AsyncIterator[Lease]:
        """Hold an engine that serves ``spec``, loading it if need be; raise Busy when too many wait.

        keep_alive_ns: None leaves the engine's own; 0 unloads it after the last lease; FOREVER_NS keeps it.
        """
        engine = await self._acquire(spec, keep_alive_ns)
        try:
            yield Lease(engine.runner, self._window(engine, spec))
        finally:
            self._release(engine)

    def wider(self, spec: LoadSpec, window_tokens: int) -> LoadSpec | None:
        """Return ``spec`` with the window that a load for it alone would make, if that is a larger one.

        For a request that names no window and does not fit the small one that somebody else asked for.
        """
        if spec.num_ctx is not None:
            return None
        window = default_window(spec.info, self._config.engine, machine.available_bytes())
        return replace(spec, num_ctx=window) if window > window_tokens else None

    @staticmethod
    def _window(engine: LoadedEngine, spec: LoadSpec) -> int:
        window = engine.ready.context_tokens
        return min(window, spec.needed_tokens) if spec.needed_tokens else window

    async def _acquire(self, spec: LoadSpec, keep_alive_ns: int | None) -> LoadedEngine:
        max_queue = self._config.server.max_queue
        engine = self._engine
        if engine is not None and not self._waiters and engine.serves(spec):
            if engine.num_leases >= engine.max_sequences + max_queue:
                raise Busy(BUSY_TEXT)
            self._grant(engine, keep_alive_ns)
            return engine
        if len(self._waiters) >= max_queue:
            raise Busy(BUSY_TEXT)
        waiter = Waiter(spec, keep_alive_ns, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        self._wake.set()
        try:
            return await waiter.granted
        except asyncio.CancelledError:
            granted = waiter.granted
            if granted.done() and not granted.cancelled() and granted.exception() is None:
                self._release(granted.result())
            with suppress(ValueError):
                self._waiters.remove(waiter)
            raise

    def _grant(self, engine: LoadedEngine, keep_alive_ns: int | None) -> None:
        engine.num_leases += 1
        if keep_alive_ns is not None:
            engine.keep_alive_ns = keep_alive_ns
        if engine.timer is not None:
            engine.timer.cancel()
            engine.timer = None

    def _release(self, engine: LoadedEngine) -> None:
        engine.num_leases -= 1
        if engine.num_leases == 0:
            self._is_idle.set()
            self._start_clock(engine)
        self._wake.set()

    def _start_clock(self, engine: LoadedEngine) -> None:
        if engine.keep_alive_ns == 0:
            self._doom(engine)
        elif engine.keep_alive_ns != FOREVER_NS:
            seconds = engine.keep_alive_ns / 1e9
            engine.timer = asyncio.get_running_loop().call_later(seconds, self._doom, engine)

    def _doom(self, engine: LoadedEngine) -> None:
        engine.is_doomed = True
        self._wake.set()

    def expire(self, key: str, name: ModelName | None = None) -> None:
        """Unload the model of this key, or loaded by this name, once idle; it need not be loaded."""
        engine = self._engine
        if engine is None:
            return
        if engine.spec.key == key or (name is not None and engine.spec.info.name == name):
            engine.keep_alive_ns = 0
            if engine.num_leases == 0:
                self._doom(engine)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a model."""
        return len(self._waiters)

    async def stats(self) -> Stats | None:
        """Return the engine's numbers; None if there is none, or it is too busy to tell within a second."""
        engine = self._engine
        if engine is None or not engine.runner.is_alive:
            return None
        try:
            async with asyncio.timeout(STATS_S):
                return await engine.runner.stats()
        except (TimeoutError, EngineError):
            return None

    @property
    def is_loading(self) -> bool:
        """True while a model is being read."""
        return self._loading is not None

    def loaded(self) -> Sequence[LoadedModel]:
        """Return the loaded model and the one being loaded, for ``ps``."""
        rows = []
        if self._engine is not None and self._engine.runner.is_alive and not self._engine.is_doomed:
            rows.append(self._loaded_row(self._engine))
        if self._loading is not None:
            spec, runner, window = self._loading
            size = sum(blob.size for blob in spec.info.config.blobs)
            expires_at = _later(self._config.server.keep_alive_ns)
            rows.append(
                LoadedModel(
                    spec=spec,
                    size_bytes=size,
                    size_vram_bytes=0,
                    context_tokens=window,
                    expires_at=expires_at,
                    is_loading=True,
                    pid=runner.pid,
                )
            )
        return rows

    def _loaded_row(self, engine: LoadedEngine) -> LoadedModel:
        ready = engine.ready
        size = ready.weight_bytes + ready.kv_bytes + ready.workspace_bytes
        if ready.device_bytes and ready.memory.place:
            # Experts in slots are counted where they compute, not in host memory too
            memory = ready.memory
            size = ready.device_bytes + max(0, memory.host_expert_bytes - memory.slot_bytes)
        return LoadedModel(
            spec=engine.spec,
            size_bytes=size,
            size_vram_bytes=ready.device_bytes,
            context_tokens=ready.context_tokens,
            expires_at=_end_of(engine),
            is_loading=False,
            pid=engine.runner.pid,
            memory=ready.memory,
        )

    async def _serve(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while await self._turn():
                pass

    async def _turn(self) -> bool:
        """Make one transition; False when there is nothing to do until the next wake."""
        while self._waiters and self._waiters[0].granted.done():
            self._waiters.popleft()
        engine = self._engine
        if engine is not None and (engine.is_doomed or not engine.runner.is_alive):
            if engine.num_leases and engine.runner.is_alive:
                return False
            await self._unload(engine)
            return True
        if not self._waiters:
            return False
        head = self._waiters[0]
        if engine is None:
            await self._load(head)
        elif engine.serves(head.spec):
            self._grant_queued(engine)
        elif engine.num_leases:
            return False
        elif engine.can_grow_for(head.spec):
            await self._grow(engine, head)
        else:
            await self._unload(engine)
        return True

    def _grant_queued(self, engine: LoadedEngine) -> None:
        left: deque[Waiter] = deque()
        for waiter in self._waiters:
            if not waiter.granted.done() and engine.serves(waiter.spec):
                self._grant(engine, waiter.keep_alive_ns)
                waiter.granted.set_result(engine)
            else:
                left.append(waiter)
        self._waiters = left

    async def _unload(self, engine: LoadedEngine) -> None:
        self._engine = None
        if engine.timer is not None:
            engine.timer.cancel()
        started = time.monotonic()
        await engine.runner.stop()
        self._runners.discard(engine.runner)
        name = engine.spec.info.name.display
        logger.info(log.fields("model unloaded", model=name, seconds=time.monotonic() - started))

    def _needed_tokens(self, spec: LoadSpec) -> int:
        """Return the largest window that anybody who waits for this model wants."""
        return max(waiter.spec.needed_tokens for waiter in self._waiters if waiter.spec.key == spec.key)

    async def _grow(self, engine: LoadedEngine, head: Waiter) -> None:
        """Make the window of an idle engine larger; if it cannot it is gone, and the next turn loads anew."""
        self._engine = None
        if engine.timer is not None:
            engine.timer.cancel()
        spec, runner, window = engine.spec, engine.runner, self._needed_tokens(head.spec)
        self._loading = (spec, runner, window)
        started = time.monotonic()
        try:
            ready = await runner.grow(window, _timeout_s(self._config.server.load_timeout_ns))
        except FtdError as exc:
            self._runners.discard(runner)
            logger.warning(log.fields("window not grown", model=spec.info.name.display, error=exc.message))
            return
        finally:
            self._loading = None
        self._serve_with(LoadedEngine(spec, runner, engine.keep_alive_ns, window, engine.max_sequences))
        self._log_load(spec, ready, time.monotonic() - started)

    def _serve_with(self, engine: LoadedEngine) -> None:
        self._engine = engine
        self._grant_queued(engine)
        if engine.num_leases == 0:
            self._start_clock(engine)

    async def _load(self, head: Waiter) -> None:
        spec, config = head.spec, self._config
        message = load_message(spec, config.engine, self._needed_tokens(spec))
        runner = self.new_runners.make(self._wake.set)
        self._runners.add(runner)
        self._loading = (spec, runner, message.context_tokens)
        started = time.monotonic()
        try:
            ready = await runner.start(message, _timeout_s(config.server.load_timeout_ns))
        except FtdError as exc:
            self._loading = None
            self._runners.discard(runner)
            name = spec.info.name.display
            logger.error(log.fields("model failed to load", model=name, error=exc.message))
            self._refuse_queued(spec, exc)
            return
        self._loading = None
        # Who is granted sets its own; when everybody left, the model stays for the next try.
        keep_alive_ns = config.server.keep_alive_ns
        engine = LoadedEngine(spec, runner, keep_alive_ns, message.context_tokens, message.max_sequences)
        self._log_load(spec, ready, time.monotonic() - started)
        self._serve_with(engine)

    def _log_load(self, spec: LoadSpec, ready: Ready, seconds: float) -> None:
        logger.info(
            log.fields(
                "model loaded",
                model=spec.info.name.display,
                weights=units.format_bytes(ready.weight_bytes),
                kv=units.format_bytes(ready.kv_bytes),
                context=ready.context_tokens,
                device=ready.device,
                threads=ready.num_threads,
                seconds=seconds,
            )
        )

    def _refuse_queued(self, spec: LoadSpec, error: FtdError) -> None:
        """The load failed for all who wait for the same model: each of them would only try the same again."""
        for waiter in [waiter for waiter in self._waiters if waiter.spec.key == spec.key]:
            self._waiters.remove(waiter)
            self._refuse(waiter, error)

    @staticmethod
    def _refuse(waiter: Waiter, error: FtdError) -> None:
        if not waiter.granted.done():
            waiter.granted.set_exception(error)


def _end_of(engine: LoadedEngine) -> float | None:
    """Return when an engine ends, by the clock as it stands now: people and NTP set it meanwhile."""
    if engine.timer is None:
        return _later(engine.keep_alive_ns)
    return time.time() + engine.timer.when() - time.monotonic()


def _later(keep_alive_ns: int) -> float | None:
    return None if keep_alive_ns == FOREVER_NS else time.time() + keep_alive_ns / 1e9


def _timeout_s(timeout_ns: int) -> float | None:
    return None if timeout_ns in (0, FOREVER_NS) else timeout_ns / 1e9
