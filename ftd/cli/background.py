"""Connecting to the daemon, and starting one in the background when none listens.

Only a daemon on this machine is started, detached, with its log in the state folder. Two commands that start
at the same moment start two; the second finds the port taken and ends, and both commands use the first.
"""

import importlib
import ipaddress
import os
import time
from pathlib import Path
from typing import BinaryIO

from ftd import config, environment
from ftd.address import parse_address
from ftd.cli import output
from ftd.cli.client import Client, DaemonUnreachable

LOG_NAME = "serve.log"
# what is started; a constant so that tests can start something smaller
SERVE = (*environment.module_command("ftd"), "serve")
_MAX_LOG_BYTES = 8 << 20
_START_TIMEOUT_S = 30.0
_POLL_S = 0.005
# how long a daemon that somebody else started may take to answer after ours has ended
_OTHER_TIMEOUT_S = 3.0


def connect(*, start: bool = True, meanwhile: str = "") -> Client:
    """Return a client of a daemon that answers, started now if need be.

    meanwhile: the module that the command needs next; it is imported while a daemon starts, as is what the
    client needs: a core has nothing else to do until the daemon has started its engine. Raises
    DaemonUnreachable if none answers and ``start`` is false, the address is another machine's, or it does not
    come up.
    """
    client = Client(parse_address(config.load().server.host))
    if client.is_up():
        return client
    if not start:
        raise DaemonUnreachable(f"no daemon listens: {client.address.url}", "ftd serve")
    if not _is_local(client):
        raise DaemonUnreachable(
            f"no daemon listens: {client.address.url}", "start one there with: ftd serve, or change FTD_HOST"
        )
    _start(client, meanwhile)
    return client


def _is_local(client: Client) -> bool:
    host = client.address.host
    if client.address.scheme != "http" or client.address.path:
        return False
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _start(client: Client, meanwhile: str) -> None:
    log_path = environment.state_dir() / LOG_NAME
    output.note(f"starting the daemon: {client.address.url}, log {log_path}")
    with _open_log(log_path) as descriptor:
        start_of_log = os.fstat(descriptor.fileno()).st_size
        # not subprocess: the daemon outlives this process, and nobody here owns it
        process_id = os.posix_spawnp(
            SERVE[0],
            SERVE,
            environment.prepared(),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, descriptor.fileno(), 1),
                (os.POSIX_SPAWN_DUP2, descriptor.fileno(), 2),
            ],
            setsid=True,
        )
    for module in filter(None, ("ftd.cli.connection", meanwhile)):
        importlib.import_module(module)
    deadline = time.monotonic() + _START_TIMEOUT_S
    exit_code = None
    while time.monotonic() < deadline:
        if client.is_up():
            return
        if exit_code is None and (status := os.waitpid(process_id, os.WNOHANG))[0]:
            exit_code = os.waitstatus_to_exitcode(status[1])
            deadline = time.monotonic() + _OTHER_TIMEOUT_S
        time.sleep(_POLL_S)
    state = "does not answer" if exit_code is None else f"ended with code {exit_code}"
    raise DaemonUnreachable(
        f"the daemon {state}: {_last_line(log_path, start_of_log) or 'its log is empty'}", f"see {log_path}"
    )


def _open_log(path: Path) -> BinaryIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > _MAX_LOG_BYTES:
        path.replace(path.with_suffix(".log.1"))
    return path.open("ab")


def _last_line(path: Path, start: int) -> str:
    """Return the last line of the log that says an error, or the last line at all, after byte ``start``."""
    with path.open("rb") as file:
        file.seek(start)
        lines = [line.decode("utf-8", "replace").strip() for line in file.read(1 << 20).splitlines()]
    lines = [line for line in lines if line]
    errors = [line for line in lines if line.startswith("error: ")]
    return (errors or lines or [""])[-1]
