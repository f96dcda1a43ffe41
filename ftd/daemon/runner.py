"""The runner owns one engine process: starts it, speaks ``engine.messages`` with it, reports its death.

    daemon ── Load, Generate, Cancel, … ──▶ python -m ftd.engine FD
           ◀── Progress, Ready, Tokens, … ──

The engine's log is copied to ours and its last line names the cause of death. One runner serves one
load: when the process ends, every waiting call gets ``EngineDied`` and the runner is of no more use.
"""

import asyncio
import itertools
import logging
import re
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress

from ftd import errors, log, units
from ftd.daemon.engine_process import EngineProcess
from ftd.daemon.frames import Frames
from ftd.daemon.spawn import WORKER_COMMAND, Spawned, spawn
from ftd.engine import messages
from ftd.engine.messages import (
    Cancel,
    Embed,
    Embedded,
    Failed,
    Finished,
    Generate,
    GetStats,
    Grow,
    Load,
    Progress,
    Ready,
    Stats,
    Tokens,
    Unload,
    Vocabulary,
)
from ftd.errors import EngineDied, EngineError, FtdError

logger = logging.getLogger(__name__)

STOP_GRACE_S = 5.0
# Exit status and last words come within this time after the socket closed, or waiting requests do without.
LAST_WORDS_S = 0.5

# Lines of the engine's log that cannot say why it ended
_NO_CAUSE = re.compile(r"\S+ \S+ (DEBUG|INFO) ")

Reply = Tokens | Finished | Embedded | FtdError


class Runner:
    """One engine process and the calls that wait for it; lives on the event loop that called ``start``.

    ``ready`` is set after ``start``, ``progress`` while loading. ``on_exit`` is called once, when the process
    is gone.
    """

    def __init__(
        self,
        command: Sequence[str] = WORKER_COMMAND,
        on_exit: Callable[[], None] | None = None,
        log_level: str = "info",
    ) -> None:
        self._command = tuple(command)
        self._log_level = log_level
        self.on_exit = on_exit
        self._request_ids = itertools.count(1)
        self._mailboxes: dict[int, asyncio.Queue[Reply]] = {}
        self._stats_waiters: list[asyncio.Future[Stats]] = []
        self._load_moved = asyncio.Event()
        self._load_result: asyncio.Future[Ready] | None = None
        self._process: EngineProcess | None = None
        self._transport: asyncio.Transport | None = None
        self._obituary: asyncio.Task[None] | None = None
        self._log_task: asyncio.Task[None] | None = None
        self._cause: str | None = None
        self._stopping = False
        self.last_log_line = ""
        self.ready: Ready | None = None
        self.progress: Progress | None = None
        self.death: EngineError | None = None
        self.has_vocabulary = False
        self.exited = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """Process id of the engine, None before ``start``."""
        return None if self._process is None else self._process.pid

    @property
    def is_alive(self) -> bool:
        """True from a successful ``start`` until the process ends or is told to."""
        return self.ready is not None and self.death is None and not self._stopping

    def next_request_id(self) -> int:
        """Return an id that no request of this runner has had."""
        return next(self._request_ids)

    async def prepare(self, spawned: Spawned | None = None) -> None:
        """Start the process, or take one that has started; it then waits for ``start``."""
        assert self._process is None, "a runner starts once"
        await self._watch(spawned or spawn(self._command, self._log_level))

    async def start(self, load: Load, no_progress_timeout_s: float | None = None) -> Ready:
        """Start the process if it is not there and load the model.

        Fails when the engine says so, dies, or makes no progress. A caller that is cancelled leaves the
        process running: call ``stop``.
        """
        if self._process is None:
            await self.prepare()
        return await self._loaded(load, no_progress_timeout_s)

    async def grow(self, context_tokens: int, timeout_s: float | None = None) -> Ready:
        """Make the window larger, between requests; a runner that cannot is stopped, and the error raised."""
        return await self._loaded(Grow(context_tokens=context_tokens), timeout_s)

    async def _loaded(self, message: Load | Grow, no_progress_timeout_s: float | None) -> Ready:
        result: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        result.add_done_callback(self._load_ended)
        self._load_result = result
        try:
            self._send(message)
            while not result.done():
                self._load_moved.clear()
                async with asyncio.timeout(no_progress_timeout_s):
                    await self._load_moved.wait()
            self.ready = result.result()
        except TimeoutError:
            result.cancel()
            await self.stop(grace_s=0)
            raise _load_timeout(no_progress_timeout_s or 0, self.progress) from None
        except FtdError:
            await self.stop(grace_s=0)
            raise
        return self.ready

    def _load_ended(self, result: asyncio.Future[Ready]) -> None:
        if not result.cancelled():
            result.exception()  # marks it as seen: ``start`` may have been cancelled
        self._load_moved.set()

    async def _watch(self, spawned: Spawned) -> None:
        self._process = EngineProcess(spawned)
        await self._process.open()
        self._log_task = asyncio.create_task(self._copy_log())
        self._transport, _ = await asyncio.get_running_loop().create_connection(
            lambda: Frames(self._dispatch, self._ended), sock=spawned.socket
        )
        logger.debug(log.fields("engine started", pid=self.pid))

    async def _copy_log(self) -> None:
        assert self._process is not None
        while (text := await self._process.log_line()) is not None:
            if not text:
                continue
            if not _NO_CAUSE.match(text):
                self.last_log_line = text
            print(text, file=sys.stderr, flush=True)

    def _send(self, message: messages.Down) -> None:
        if self.death is not None:
            raise self.death
        if self._transport is None or self._transport.is_closing():
            raise EngineDied(self._death_text("the engine is not running"))
        self._transport.write(messages.encode(message))

    def _dispatch(self, message: messages.Up) -> None:
        match message:
            case Tokens() | Finished() | Embedded():
                mailbox = self._mailboxes.get(message.request_id)
                if mailbox is not None:
                    mailbox.put_nowait(message)
            case Progress():
                self.progress = message
                self._load_moved.set()
            case Ready():
                if self._load_result is not None and not self._load_result.done():
                    self._load_result.set_result(message)
            case Stats():
                waiters, self._stats_waiters = self._stats_waiters, []
                for waiter in waiters:
                    if not waiter.done():
                        waiter.set_result(message)
            case Failed():
                self._failed(message)

    def _failed(self, message: Failed) -> None:
        error = _error_of(message)
        if message.request_id is not None:
            mailbox = self._mailboxes.get(message.request_id)
            if mailbox is not None:
                mailbox.put_nowait(error)
        elif self._load_result is not None and not self._load_result.done():
            self._load_result.set_exception(error)
        else:
            self._ended(error.message)
            self._kill()

    def _ended(self, cause: str | None) -> None:
        """The socket closed, or what came over it cannot be trusted: find the cause, then tell everyone."""
        self._cause = self._cause or cause
        if self._obituary is None:
            self._obituary = asyncio.create_task(self._bury())

    async def _bury(self) -> None:
        assert self._process is not None and self._log_task is not None
        if self._cause is not None:
            self._kill()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_S):
                await self._process.wait()
        await asyncio.wait({self._log_task}, timeout=LAST_WORDS_S)
        self._kill()
        code = self._process.returncode
        text = "the server is shutting down" if self._stopping else self._death_text(_exit_text(code))
        self.death = EngineDied(text)
        if not self._stopping:
            logger.error(log.fields("engine died", pid=self.pid, exit=_exit_text(code), cause=self._words()))
        for mailbox in self._mailboxes.values():
            mailbox.put_nowait(self.death)
        if self._load_result is not None and not self._load_result.done():
            self._load_result.set_exception(self.death)
        for waiter in self._stats_waiters:
            if not waiter.done():
                waiter.set_exception(self.death)
        await self._process.wait()
        self._log_task.cancel()
        self._process.close()
        if self._transport is not None:
            self._transport.abort()
        self.exited.set()
        if self.on_exit is not None:
            self.on_exit()

    def _words(self) -> str:
        return self._cause or self.last_log_line

    def _death_text(self, exit_text: str) -> str:
        words = ": ".join(part for part in (exit_text, self._words()) if part)
        return (
            "model runner has unexpectedly stopped, this may be due to resource limitations "
            f"or an internal error, check the log of ftd serve for details: {words}"
        )

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def teach(self, vocabulary: Vocabulary) -> None:
        """Tell the engine the bytes of every id; once, before the first Generate with a grammar."""
        assert not self.has_vocabulary
        self._send(vocabulary)
        self.has_vocabulary = True

    async def generate(self, message: Generate) -> AsyncGenerator[Tokens | Finished, None]:
        """Yield the Tokens of one request and at last its Finished; closing the iterator cancels."""
        mailbox = self._open(message)
        over = False
        try:
            while not over:
                reply = await mailbox.get()
                over = not isinstance(reply, Tokens)
                if isinstance(reply, FtdError):
                    raise reply
                assert isinstance(reply, Tokens | Finished)
                yield reply
        finally:
            self._close(message.request_id, over)

    async def embed(self, message: Embed) -> Embedded:
        """Return the vectors of one Embed."""
        mailbox = self._open(message)
        over = False
        try:
            reply = await mailbox.get()
            over = True
        finally:
            self._close(message.request_id, over)
        if isinstance(reply, FtdError):
            raise reply
        assert isinstance(reply, Embedded)
        return reply

    def _open(self, message: Generate | Embed) -> "asyncio.Queue[Reply]":
        assert message.request_id not in self._mailboxes
        self._send(message)
        mailbox = self._mailboxes[message.request_id] = asyncio.Queue()
        return mailbox

    def _close(self, request_id: int, over: bool) -> None:
        del self._mailboxes[request_id]
        if not over:
            self.cancel(request_id)

    def cancel(self, request_id: int) -> None:
        """Tell the engine to abort a request; its Finished still comes. Harmless when the engine is gone."""
        with suppress(EngineError):
            self._send(Cancel(request_id=request_id))

    async def stats(self) -> Stats:
        """Return the engine's counters and gauges."""
        waiter: asyncio.Future[Stats] = asyncio.get_running_loop().create_future()
        self._send(GetStats())
        self._stats_waiters.append(waiter)
        return await waiter

    async def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """End the process: ask, then kill after ``grace_s``; return when it is gone and its memory free."""
        self._stopping = True
        if self._process is None:
            return
        if grace_s > 0:
            with suppress(EngineError):
                self._send(Unload())
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self._process.wait()
        self._kill()
        self._ended(None)
        await self.exited.wait()


def _error_of(message: Failed) -> FtdError:
    return errors.by_name(message.kind)(message.message, message.hint)


def _exit_text(code: int | None) -> str:
    if code is None:
        return "it closed its socket"
    if code < 0:
        return f"signal {-code}" + (", as when memory runs out" if -code == signal.SIGKILL else "")
    return f"exit status {code}"


def _load_timeout(seconds: float, progress: Progress | None) -> EngineError:
    done = "nothing read"
    if progress is not None:
        completed, total = progress.completed_bytes, progress.total_bytes
        done = f"{units.format_bytes(completed)} of {units.format_bytes(total)} read"
    return EngineError(
        f"timed out waiting for the engine to load: no progress in "
        f"{units.format_duration(units.seconds_ns(seconds))}, {done}",
        "raise FTD_LOAD_TIMEOUT",
    )
