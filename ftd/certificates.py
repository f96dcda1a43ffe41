"""The system's certificates, read when somebody needs them.

aiohttp reads them twice while it is imported, which takes longer than all else of the import. Who wants to
start soon imports it inside of ``unread``; its own contexts trust nobody then, so clients bring ``context``.
"""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache


@contextmanager
def unread() -> Iterator[None]:
    """Let TLS contexts that are made meanwhile have no certificates. Starts that have one thread only."""
    ssl.SSLContext.set_default_verify_paths = lambda self: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        del ssl.SSLContext.set_default_verify_paths


@cache
def context() -> ssl.SSLContext:
    """Return the context of HTTPS clients, with the system's certificates."""
    made = ssl.create_default_context()
    made.set_alpn_protocols(("http/1.1",))
    return made
