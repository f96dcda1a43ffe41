"""Starting an engine process without an event loop, so that it may start before one is imported.

The process gets one end of a socket as the descriptor that its command line names, nothing to read, nowhere
to print, and a pipe for its log. It leads a session of its own: an interrupt typed at the daemon's terminal
must not end the engine before its requests. When our end of the socket closes, it ends.
"""

import os
import socket
from collections.abc import Sequence
from typing import NamedTuple

from ftd import environment
from ftd.errors import EngineError

WORKER_COMMAND = environment.module_command("ftd.engine")


class Spawned(NamedTuple):
    """A process that has started: who it is, our end of its socket, where its log can be read."""

    pid: int
    socket: socket.socket
    log: int


def spawn(command: Sequence[str], log_level: str) -> Spawned:
    """Start ``command`` with its descriptor and ``log_level`` as last arguments; EngineError if it cannot."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    log, their_log = os.pipe()
    with theirs:
        theirs.set_inheritable(True)
        try:
            process_id = os.posix_spawnp(
                command[0],
                (*command, str(theirs.fileno()), log_level),
                environment.prepared(),
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_DUP2, their_log, 2),
                ],
                setsid=True,
            )
        except OSError as exc:
            ours.close()
            os.close(log)
            raise EngineError(f"cannot start the engine: {exc}") from exc
        finally:
            os.close(their_log)
    ours.setblocking(False)
    return Spawned(process_id, ours, log)
