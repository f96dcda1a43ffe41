"""Where a daemon listens and is called: host, port and path."""

from typing import NamedTuple

DEFAULT_PORT = 11434


class Address(NamedTuple):
    """Where a daemon listens or is called."""

    scheme: str
    host: str
    port: int
    path: str = ""

    @property
    def url(self) -> str:
        """URL for a client: unspecified addresses become loopback."""
        host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"{self.scheme}://{f'[{host}]' if ':' in host else host}:{self.port}{self.path}"


def parse_address(text: str) -> Address:
    """Read a host setting the way Ollama reads OLLAMA_HOST: ``[scheme://]host[:port][/path]``, forgiving."""
    text = text.strip().strip("\"'").strip()
    scheme, port = "http", DEFAULT_PORT
    if "://" in text:
        scheme, text = text.split("://", 1)
        port = {"http": 80, "https": 443}.get(scheme, DEFAULT_PORT)
    text, _, path = text.partition("/")
    host = text
    if text.startswith("["):
        host, _, tail = text[1:].partition("]")
        text = f"x{tail}"
    elif text.count(":") > 1:
        text = "x"
    elif ":" in text:
        host = text.partition(":")[0]
    elif not text:
        host = "127.0.0.1"
    tail = text.partition(":")[2]
    if tail.isascii() and tail.isdigit() and int(tail) <= 65535:
        port = int(tail)
    return Address(scheme, host, port, f"/{path.rstrip('/')}" if path.rstrip("/") else "")
