"""The library of HTTP behind ``client``: a third of a command's start, imported with its first request."""

import http.client
import ssl

from ftd.address import Address

# What can become of a request that nobody answers
FAILURES = (OSError, http.client.HTTPException)


def connection(address: Address, host: str, timeout_s: float) -> http.client.HTTPConnection:
    """Return a connection, not open yet, to ``host`` by the scheme and port of an address."""
    if address.scheme == "https":
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(host, address.port, timeout=timeout_s, context=context)
    return http.client.HTTPConnection(host, address.port, timeout=timeout_s)


def reason(exc: Exception) -> str:
    """Say what became of a request, for one of ``FAILURES``."""
    if isinstance(exc, http.client.IncompleteRead):
        return "it ended in the middle of its answer"
    return getattr(exc, "strerror", None) or str(exc) or type(exc).__name__
