"""The daemon's listening socket; opened first, so that a second daemon ends before it touches anything.

Whoever connects from then on waits for the daemon to be imported instead of asking again and again.
"""

import errno
import socket

from ftd.address import parse_address
from ftd.errors import Conflict, InvalidOption

_BACKLOG = 1024


def listen(setting: str) -> socket.socket:
    """Return a listening socket for a host setting; without a host it listens on every address.

    Raises Conflict when the address is taken, InvalidOption when nobody can listen there.
    """
    address = parse_address(setting)
    if address.scheme != "http":
        raise InvalidOption(f"cannot listen with {address.scheme}: {setting}", "use http://")
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
        listener.listen(_BACKLOG)
    except OSError as exc:
        listener.close()
        host = address.host
        where = f"{f'[{host}]' if ':' in host else host}:{address.port}"
        if exc.errno == errno.EADDRINUSE:
            from ftd.daemon import neighbour  # only those need it who cannot start

            raise Conflict(
                f"the address is in use: {where}{neighbour.who_answers(address)}",
                "stop that program, or choose another address with FTD_HOST",
            ) from exc
        raise InvalidOption(f"cannot listen on {where}: {exc.strerror}", "check FTD_HOST") from exc
    return listener
