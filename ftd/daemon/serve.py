"""``ftd serve``: work, and end in good order on SIGINT or SIGTERM."""

import asyncio
import logging
import signal
import socket

from aiohttp import web

import ftd
from ftd import log
from ftd.config import Config
from ftd.daemon import listening
from ftd.daemon.app import make_app
from ftd.daemon.runner import Runner
from ftd.daemon.services import SERVICES
from ftd.daemon.spawn import Spawned
from ftd.registry.store import Store

logger = logging.getLogger(__name__)

SHUTDOWN_S = 5.0


def run(config: Config, listener: socket.socket | None = None, engine: Spawned | None = None) -> None:
    """Serve until a signal ends it; raise Conflict when the address is taken.

    ``listener`` and ``engine``, the process for the first load, may be there already; both have ended when
    this returns.
    """
    log.configure(config.server.log_level)
    logging.getLogger("aiohttp.server").addFilter(_is_worth_a_line)
    asyncio.run(_run(config, listener, engine))


async def _run(config: Config, listener: socket.socket | None, engine: Spawned | None) -> None:
    if engine is None:
        await serve(config, listener=listener)
        return
    spare = Runner(log_level=config.server.log_level)
    await spare.prepare(engine)
    try:
        await serve(config, spare=spare, listener=listener)
    finally:
        await spare.stop(grace_s=0)


async def serve(
    config: Config,
    ready: "asyncio.Event | None" = None,
    spare: Runner | None = None,
    listener: socket.socket | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM, a second one ends it at once; ``ready`` is set when requests are taken.

    ``spare`` is prepared for the first load; its end is the caller's business. ``listener`` is closed.
    """
    if listener is None:
        listener = await asyncio.to_thread(listening.listen, config.server.host)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        store = Store(config.registry.models_dir)
        await asyncio.to_thread(_sweep, store, config)
        app = make_app(config, store)
        app.on_shutdown.append(_finish)

        def end() -> None:
            """Begin to end; who asks a second time will not wait for answers."""
            if stop.is_set():
                app[SERVICES].manager.hurry()
            stop.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, end)
        if spare is not None:
            app[SERVICES].manager.new_runners.adopt(spare)
        runner = web.AppRunner(
            app,
            handler_cancellation=True,
            access_log=None,
            shutdown_timeout=SHUTDOWN_S,
        )
        await runner.setup()
        try:
            await web.SockSite(runner, listener).start()
            _log_start(config, listener)
            if ready is not None:
                ready.set()
            await stop.wait()
            logger.info("stopping")
        finally:
            await runner.cleanup()
    finally:
        listener.close()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def _is_worth_a_line(record: logging.LogRecord) -> bool:
    """Leave out what the framework says of a body that it cannot read: the client has been told."""
    return record.exc_info is None or not isinstance(record.exc_info[1], web.RequestPayloadError)


async def _finish(app: web.Application) -> None:
    """Let running answers end, for a while; the others, and transfers, end with an error that says so."""
    app[SERVICES].store.blobs.is_ending = True
    app[SERVICES].transfers.end()
    await app[SERVICES].manager.drain(SHUTDOWN_S)


def _sweep(store: Store, config: Config) -> None:
    removed = store.sweep(prune=not config.registry.no_prune)
    if removed:
        logger.info(log.fields("store swept", removed=len(removed)))


def _log_start(config: Config, listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    logger.info(
        log.fields(
            "listening",
            address=f"{f'[{host}]' if ':' in host else host}:{port}",
            version=ftd.__version__,
            models=config.registry.models_dir,
        )
    )
    if host in ("0.0.0.0", "::"):
        logger.warning("anyone who can reach this machine can use the API; there is no password yet")
