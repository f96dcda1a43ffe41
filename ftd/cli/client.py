"""The one HTTP client of the commands: JSON up, JSON or NDJSON lines down, blocking, standard library only.

One connection for each call. A stream that is not read to its end closes its connection, which aborts the
request in the daemon. ``connection`` is imported with the first request: it takes a third of a command's
start, and a daemon that has to be started starts meanwhile.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any

import ftd
from ftd.address import Address
from ftd.errors import FtdError

if TYPE_CHECKING:
    import http.client

_CONNECT_TIMEOUT_S = 5.0
# A daemon that listens but is not imported yet answers after that
_UP_TIMEOUT_S = 30.0
_MAX_LINE_BYTES = 64 << 20
_READ_BYTES = 1 << 16
_MAX_BODY_BYTES = 1 << 30


class DaemonUnreachable(FtdError):
    """Nothing that speaks HTTP answers at the daemon's address, or it went away in the middle."""


class RequestFailed(FtdError):
    """The daemon refused or failed; ``status`` is its HTTP status, 200 for an error inside a stream."""

    def __init__(self, message: str, hint: str | None = None, status: int = 0) -> None:
        super().__init__(message, hint)
        self.args = (message, hint, status)
        self.status = status


class Client:
    """Calls the daemon at ``address``."""

    def __init__(self, address: Address) -> None:
        self.address = address

    def is_up(self) -> bool:
        """Whether a daemon answers ``HEAD /``."""
        try:
            socket.create_connection((self._host, self.address.port), _CONNECT_TIMEOUT_S).close()
        except OSError:
            return False
        try:
            with self._send("HEAD", "/", timeout_s=_UP_TIMEOUT_S) as response:
                return response.status == 200
        except DaemonUnreachable:
            return False

    def head(self, path: str) -> int:
        """Return the status of ``HEAD path``."""
        with self._send("HEAD", path) as response:
            return response.status

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Send ``body`` as JSON and return the decoded answer, None if it is empty. Raises RequestFailed."""
        with self._send(method, path, body) as response:
            data = response.read(_MAX_BODY_BYTES)
            self._check(response.status, data)
            return _decode(data) if data else None

    def stream(self, path: str, body: object) -> Iterator[dict[str, Any]]:
        """POST ``body`` and yield the answer's objects as they come. Raises RequestFailed, also late."""
        with self._send("POST", path, body) as response:
            if response.status >= 400:
                self._check(response.status, response.read(_MAX_BODY_BYTES))
            for line in _lines(response):
                item = _decode(line)
                if "error" in item:
                    raise RequestFailed(str(item["error"]), item.get("hint"), response.status)
                yield item

    def upload(self, path: str, file: IO[bytes], size_bytes: int) -> None:
        """POST the bytes of ``file``. Raises RequestFailed."""
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size_bytes)}
        with self._send("POST", path, file, headers) as response:
            self._check(response.status, response.read(_MAX_BODY_BYTES))

    def _check(self, status: int, data: bytes) -> None:
        """Raise RequestFailed for a status that says so, with the daemon's reason or what else answered."""
        if status < 400:
            return
        try:
            body = json.loads(data)
            message, hint = str(body["error"]), body.get("hint")
        except (ValueError, KeyError, TypeError, AttributeError):
            text = " ".join(data.decode("utf-8", "replace").split())
            said = "a web page" if text.startswith("<") else text[:200] or "nothing"
            message = f"no daemon answers at {self.address.url}, but {said}: HTTP status {status}"
            hint = "another program has that address: stop it, or choose another with FTD_HOST"
        raise RequestFailed(message, hint, status)

    @contextmanager
    def _send(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: dict[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Iterator[http.client.HTTPResponse]:
        """Send one request and give its response; the connection is closed at the end, whatever happened."""
        from ftd.cli import connection as library  # see above

        connection = library.connection(self.address, self._host, _CONNECT_TIMEOUT_S)
        headers = {"User-Agent": f"ftd/{ftd.__version__}", **(headers or {})}
        if body is not None and "Content-Length" not in headers:
            body = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        try:
            connection.connect()
            connection.sock.settimeout(timeout_s)
            # a daemon that refuses an upload answers and reads no more; its answer says why
            with suppress(BrokenPipeError):
                connection.request(method, self.address.path + path, body, headers)  # type: ignore[arg-type]
            yield connection.getresponse()
        except library.FAILURES as exc:
            raise DaemonUnreachable(
                f"could not reach the daemon at {self.address.url}: {library.reason(exc)}", "ftd serve"
            ) from exc
        finally:
            connection.close()

    @property
    def _host(self) -> str:
        """The host to call: loopback for an unspecified address."""
        target = Address("http", self.address.host, self.address.port).url.removeprefix("http://")
        return target.rpartition(":")[0].strip("[]")


def _lines(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yield the lines of a body as they come, by read1: readline takes a cut connection for the end."""
    held = b""
    while data := response.read1(_READ_BYTES):
        *lines, held = (held + data).split(b"\n")
        yield from lines
        if len(held) > _MAX_LINE_BYTES:
            raise DaemonUnreachable(f"the daemon sent a line of more than {_MAX_LINE_BYTES} bytes")
    if held:
        yield held


def _decode(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError as exc:
        raise DaemonUnreachable(f"the daemon's answer is not JSON: {data[:80]!r}") from exc
    if not isinstance(value, dict):
        raise DaemonUnreachable(f"the daemon's answer is not an object: {data[:80]!r}")
    return value
