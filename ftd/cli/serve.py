"""``ftd serve``: run the daemon in the foreground. Every setting is also a flag."""

import argparse

from ftd import config, log
from ftd.cli import flags
from ftd.daemon import serve


def run(options: argparse.Namespace) -> int:
    """Serve until a signal ends it. Raises Conflict if something else listens at the address."""
    loaded = config.load(flags.values(options))
    log.configure(loaded.server.log_level)
    serve.run(loaded)
    return 0
