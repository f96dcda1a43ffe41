"""``ftd serve``: listen, work, and end in good order on SIGINT or SIGTERM.

Listen first, then sweep the store: a second daemon finds the port taken before it touches anything.
"""

import asyncio
import errno
import http.client
import json
import logging
import signal
import socket

from aiohttp import web

import ftd
from ftd import log
from ftd.address import Address, parse_address
from ftd.config import Config
from ftd.daemon.app import make_app
from ftd.daemon.runner import Runner
from ftd.daemon.services import SERVICES
from ftd.errors import Conflict, InvalidOption
from ftd.registry.store import Store

logger = logging.getLogger(__name__)

SHUTDOWN_S = 5.0
_PROBE_S = 1.0


def run(config: Config) -> None:
    """Serve until a signal ends it; raise Conflict when the address is taken."""
    asyncio.run(serve(config))


async def serve(config: Config, ready: "asyncio.Event | None" = None, spare: Runner | None = None) -> None:
    """Serve until SIGINT or SIGTERM; ``ready`` is set when requests are taken.

    ``spare`` is prepared for the first load; it has ended when this returns.
    """
    address = parse_address(config.server.host)
    if address.scheme != "http":
        raise InvalidOption(f"cannot listen with {address.scheme}: {config.server.host}", "use http://")
    listener = await asyncio.to_thread(_listen, address)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        store = Store(config.registry.models_dir)
        await asyncio.to_thread(_sweep, store, config)
        app = make_app(config, store)
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
            _log_start(config, address, listener)
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


def _listen(address: Address) -> socket.socket:
    """Return a listening socket; an empty host listens on every address."""
    try:
        found = socket.getaddrinfo(
            address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as exc:
        raise InvalidOption(f"cannot listen on {address.host}: {exc}", "check FTD_HOST") from exc
    family, kind, protocol, _, target = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(target)
        listener.listen(1024)
    except OSError as exc:
        listener.close()
        where = f"{address.host}:{address.port}"
        if exc.errno == errno.EADDRINUSE:
            raise Conflict(
                f"the address is in use: {where}{_who_answers(address)}",
                "stop that program, or choose another address with FTD_HOST",
            ) from exc
        raise InvalidOption(f"cannot listen on {where}: {exc.strerror}", "check FTD_HOST") from exc
    return listener


def _who_answers(address: Address) -> str:
    """Say what answers at an address, as far as it lets us know."""
    host = address.url.removeprefix("http://").partition("/")[0]
    connection = http.client.HTTPConnection(host, timeout=_PROBE_S)
    try:
        connection.request("GET", "/api/version")
        response = connection.getresponse()
        server = response.headers.get("Server", "")
        version = json.loads(response.read(1 << 16))["version"]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return ""
    finally:
        connection.close()
    if server.startswith("ftd/"):
        return f", by another ftd daemon ({server})"
    return f", by an Ollama server (version {version})"


def _sweep(store: Store, config: Config) -> None:
    removed = store.sweep(prune=not config.registry.no_prune)
    if removed:
        logger.info(log.fields("store swept", removed=len(removed)))


def _log_start(config: Config, address: Address, listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    logger.info(
        log.fields(
            "listening",
            address=f"{f'[{host}]' if ':' in host else host}:{port}",
            version=ftd.__version__,
            models=config.registry.models_dir,
        )
    )
    if not address.host or address.host in ("0.0.0.0", "::"):
        logger.warning("anyone who can reach this machine can use the API; there is no password yet")
