"""``ftd serve``: run the daemon in the foreground. Every setting is also a flag."""

import argparse
import errno

import psutil

from ftd import config, log
from ftd.cli import flags
from ftd.daemon import serve
from ftd.errors import Conflict


def run(options: argparse.Namespace) -> int:
    """Serve until a signal ends it. Raises Conflict if something else listens at the address."""
    loaded = config.load(flags.values(options))
    log.configure(loaded.server.log_level)
    try:
        serve.run(loaded)
    except OSError as exc:
        if exc.errno != errno.EADDRINUSE:
            raise
        raise taken(loaded.server.host) from exc
    return 0


def taken(host: str) -> Conflict:
    """Return the error for an address that is in use; it says by whom, where the system tells."""
    address = config.parse_address(host)
    return Conflict(
        f"the address is in use: {address.host}:{address.port}{_holder(address.port)}",
        "stop that program, or choose another address with FTD_HOST",
    )


def _holder(port: int) -> str:
    """Return who listens on ``port``, empty if it is not ours to know."""
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.laddr and connection.laddr.port == port and connection.status == psutil.CONN_LISTEN:
                if connection.pid is None:
                    break
                return f", by {psutil.Process(connection.pid).name()} (process {connection.pid})"
    except psutil.Error:
        pass
    return ""
