"""``ftd registry serve``: serve a store to other machines as an OCI registry."""

import argparse
import errno
import logging
from pathlib import Path

from aiohttp import web

from ftd import config, log
from ftd.errors import Conflict, InvalidOption
from ftd.registry.server import make_app
from ftd.registry.store import Store

logger = logging.getLogger(__name__)


def run(options: argparse.Namespace) -> int:
    """Serve until a signal ends it. Raises Conflict if something else listens at the address."""
    if not 0 <= options.port <= 65535:
        raise InvalidOption(f"--port must be between 0 and 65535: {options.port}")
    loaded = config.load()
    log.configure(loaded.server.log_level)
    root = Path(options.root).expanduser() if options.root else loaded.registry.models_dir
    address = f"{options.host}:{options.port}"
    store = Store(root)
    store.sweep(prune=not loaded.registry.no_prune)
    app = make_app(store)

    def started(*_: object) -> None:
        logger.info(log.fields("registry listening", address=address, root=root))

    try:
        # run_app prints once, when it listens
        web.run_app(app, host=options.host, port=options.port, print=started, access_log=None)
    except OSError as exc:
        if exc.errno != errno.EADDRINUSE:
            reason = exc.strerror or str(exc)
            raise InvalidOption(
                f"cannot listen on {address}: {reason}",
                "give an address of this machine as --host, its port as --port",
            ) from exc
        raise Conflict(
            f"the address is in use: {address}",
            "stop that program or choose another --port",
        ) from exc
    return 0
