"""``ftd serve``: run the daemon in the foreground. Every setting is also a flag.

A command that starts a daemon wants an answer from it soon, and an engine process takes as long to start as
the daemon does: it is started first, and the daemon is imported meanwhile.
"""

import argparse
import asyncio
import importlib

from ftd import certificates, config, log
from ftd.cli import flags
from ftd.daemon.runner import Runner


def run(options: argparse.Namespace) -> int:
    """Serve until a signal ends it. Raises Conflict if something else listens at the address."""
    loaded = config.load(flags.values(options))
    log.configure(loaded.server.log_level)
    config.prepare_environment()
    asyncio.run(_serve(loaded))
    return 0


async def _serve(loaded: config.Config) -> None:
    spare = Runner(log_level=loaded.server.log_level)
    await spare.prepare()
    try:
        with certificates.unread():
            daemon = importlib.import_module("ftd.daemon.serve")
        await daemon.serve(loaded, spare=spare)
    finally:
        await spare.stop(grace_s=0)
