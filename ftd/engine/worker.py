"""The engine process: ``python -m ftd.engine FD [LOG_LEVEL]``, started by the daemon with a socket as FD.

The first message must be Load. Then, between steps, it takes what the daemon sent, and runs steps while there
is work. It ends when told to unload, when the daemon's end of the socket closes, or when a step fails in a
way that nobody foresaw; a request that can never work only fails itself. It never imports torch on the CPU.
"""

import logging
import signal
import socket
import sys
import time

import msgspec

import ftd
from ftd import log
from ftd.engine.answers import failed
from ftd.engine.channel import Channel, Disconnected
from ftd.engine.engine import Engine
from ftd.engine.messages import (
    Cancel,
    Down,
    Embed,
    Generate,
    GetStats,
    Grow,
    Load,
    Progress,
    Unload,
    Vocabulary,
)
from ftd.errors import EngineError, FtdError
from ftd.kernels import dispatch

logger = logging.getLogger(__name__)

PROGRESS_NS = 100_000_000


def main(arguments: list[str]) -> int:
    """Serve the socket whose descriptor is the first argument; return the exit status."""
    if not 1 <= len(arguments) <= 2 or not arguments[0].isdigit():
        print("usage: python -m ftd.engine FD [LOG_LEVEL]", file=sys.stderr)
        return 2
    log.configure(arguments[1] if len(arguments) == 2 else "info")
    # Control-C reaches the whole process group; the daemon decides when its engine ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = Channel(socket.socket(fileno=int(arguments[0])))
    try:
        serve(channel)
    except Disconnected as exc:
        logger.info(log.fields("engine ended", reason=exc.message))
    except FtdError as exc:
        logger.error(log.fields("engine failed", kind=type(exc).__name__, reason=exc.message))
        _report(channel, exc)
        return 1
    except Exception as exc:  # the worker's loop: a bug or a broken machine; the daemon must hear of it
        logger.exception("engine failed")
        _report(channel, EngineError(f"{type(exc).__name__}: {exc}"))
        return 1
    finally:
        channel.close()
    return 0


def serve(channel: Channel) -> None:
    """Load the model that the first message names, then step until Unload or the end of the socket."""
    for op in ("graph", "sample", "logprobs"):  # imported while the daemon has not said what to load
        dispatch.get(op)
    first = channel.wait()
    if isinstance(first, Unload):
        return
    if not isinstance(first, Load):
        raise EngineError(f"the first message must be load: {type(first).__name__}")
    if first.version != ftd.__version__:
        raise EngineError(
            f"the daemon that runs is ftd {first.version}, the program on the disk is {ftd.__version__}",
            "restart ftd serve",
        )
    engine = Engine(first, channel.send, _Reporter(channel))
    try:
        channel.flush()
        while True:
            message = channel.poll() if engine.has_work else channel.wait()
            while message is not None:
                if isinstance(message, Unload):
                    return
                if isinstance(message, Grow):
                    engine = engine.grown(
                        msgspec.structs.replace(first, context_tokens=message.context_tokens)
                    )
                else:
                    handle(engine, channel, message)
                message = channel.poll()
            if engine.has_work:
                engine.step()
            channel.flush()
    finally:
        engine.close()


class _Reporter:
    """Sends Progress while weights are read, at most ten times a second; stops a load nobody awaits."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._last_ns = 0

    def __call__(self, completed_bytes: int, total_bytes: int) -> None:
        if self._channel.is_closed:
            raise Disconnected("the daemon closed the socket while the model was loading")
        now_ns = time.monotonic_ns()
        if now_ns - self._last_ns >= PROGRESS_NS or completed_bytes == total_bytes:
            self._last_ns = now_ns
            self._channel.send(Progress(completed_bytes=completed_bytes, total_bytes=total_bytes))
            self._channel.flush()


def handle(engine: Engine, channel: Channel, message: Down) -> None:
    """Pass one message to the engine; answer Failed when it can never work."""
    request_id = message.request_id if isinstance(message, Generate | Embed | Cancel) else None
    try:
        match message:
            case Generate():
                engine.generate(message)
            case Vocabulary():
                engine.learn(message)
            case Embed():
                engine.embed(message)
            case Cancel():
                engine.cancel(message.request_id)
            case GetStats():
                channel.send(engine.stats())
            case _:
                raise EngineError(f"unexpected message: {type(message).__name__}")
    except FtdError as exc:
        channel.send(failed(exc, request_id))


def _report(channel: Channel, exc: FtdError) -> None:
    try:
        channel.send(failed(exc))
        channel.flush()
    except Disconnected:
        pass  # nobody is left to tell
