"""Ports for programs that are told where to listen."""

import random
import socket

# Below what Linux gives to port 0 and to every outgoing connection: nobody gets it before the program does
_FIRST, _LAST = 10_000, 32_000


def free_port() -> int:
    """Return a port of 127.0.0.1 on which nothing listens."""
    while True:
        port = random.SystemRandom().randint(_FIRST, _LAST)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
