"""HTTP to one registry: address policy, credentials, redirects, and limits on everything that is read.

A ``Connection`` serves one operation. Credentials go to the registry's own origin and nowhere else; each
redirect is checked again; no encoding is accepted, so the bytes that arrive are the bytes that are counted.
"""

import asyncio
import contextlib
import io
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

import aiohttp
import msgspec
from yarl import URL

from ftd import __version__, certificates
from ftd.errors import FtdError, NotFound, TransferError, Unauthorized
from ftd.registry.addresses import AddressPolicy, CheckedResolver
from ftd.registry.auth import Authorizer, Challenge, login_hint, parse_challenge, parse_token
from ftd.registry.proxies import proxy_of

# Registries of Ollama models look at the version in front; the real name of the program follows.
USER_AGENT = f"ollama/0.13.5 (amd64 linux) ftd/{__version__}"
MAX_TOKEN_BYTES = 2**16
MAX_ERROR_BYTES = 2**12
MAX_REDIRECTS = 10
_READ_BUFFER_BYTES = 2**18
_REDIRECTS = (301, 302, 303, 307, 308)
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)
T = TypeVar("T")
Body = Callable[[], AsyncIterator[bytes]]


UNREACHABLE_HINT = "check the network, or name another registry in front of the model: HOST/NAMESPACE/MODEL"


class TransientError(TransferError):
    """A failure that may go away when the same request is sent again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How patient a transfer is, and in what portions it moves.

    ``attempts`` counts tries in a row that moved less than 1 MiB. A blob gets one stream for each
    ``stream_bytes``: what a stream has in its buffers is sent again after a kill.
    """

    connect_s: float = 15.0
    stall_s: float = 30.0
    attempts: int = 6
    backoff_s: float = 1.0
    stream_bytes: int = 128 * 2**20
    part_bytes: int = 32 * 2**20
    min_part_bytes: int = 4 * 2**20
    upload_part_bytes: int = 64 * 2**20
    progress_s: float = 0.06

    def pause_s(self, failures: int) -> float:
        """Return how long to wait after this many failures in a row: 1, 2, 4, … times the back-off."""
        return self.backoff_s * float(2 ** (failures - 1))


@dataclass(frozen=True, slots=True)
class Source:
    """A registry and how it may be reached; two transfers of one source may share their work."""

    registry: URL
    policy: AddressPolicy

    def url(self, path: str) -> URL:
        """Return the absolute URL of a path on the registry."""
        return self.registry.join(URL(path))


class Connection:
    """An HTTP session with one registry. Owned by one task tree; closed by leaving the context."""

    def __init__(self, source: Source, authorizer: Authorizer, limits: Limits, num_streams: int) -> None:
        self.source = source
        self._authorizer = authorizer
        self._authorizing = asyncio.Lock()
        self._proxies: set[tuple[str | None, int | None]] = set()
        timeout = aiohttp.ClientTimeout(
            total=None, connect=None, sock_connect=limits.connect_s, sock_read=limits.stall_s
        )
        connector = aiohttp.TCPConnector(
            ssl=certificates.context(),
            resolver=CheckedResolver(source.policy, trusted=self._proxies),
            use_dns_cache=False,
            limit=num_streams + 2,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=timeout,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=_READ_BUFFER_BYTES,
            headers={"User-Agent": USER_AGENT, "Accept-Encoding": "identity"},
            skip_auto_headers=("Content-Type",),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    @contextlib.asynccontextmanager
    async def request(
        self,
        method: str,
        url: URL,
        *,
        headers: Mapping[str, str] | None = None,
        body: Body | bytes | None = None,
        follow: bool = True,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request and yield its answer, whatever its status, after credentials and redirects.

        Raises Forbidden for an address the policy refuses, Unauthorized if credentials did not help,
        TransferError for a name that no host has, and TransientError when the network failed, also while
        the caller reads the body.
        """
        try:
            response = await self._send(method, url, dict(headers or {}), body, follow)
            try:
                if response.headers.get("Content-Encoding", "identity").lower() != "identity":
                    raise TransferError(
                        f"registry sent an encoding nobody asked for: {response.headers['Content-Encoding']}"
                    )
                yield response
            finally:
                response.release() if response.content.at_eof() else response.close()
        except FtdError:
            raise
        except TimeoutError as exc:
            raise TransientError(f"registry does not answer: {url.host}", UNREACHABLE_HINT) from exc
        except aiohttp.InvalidURL as exc:
            raise TransferError(f"not a registry address: {url.host}") from exc
        except aiohttp.ClientHttpProxyError as exc:
            hint = "put user and password into it: HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT"
            raise TransferError(
                f"the proxy refuses {url.host}: {exc.status} {exc.message}", hint if exc.status == 407 else ""
            ) from exc
        except aiohttp.ClientProxyConnectionError as exc:
            raise TransientError(f"no proxy answers at {exc.host}:{exc.port}", "see HTTPS_PROXY") from exc
        except aiohttp.ClientConnectorSSLError as exc:
            # What answers a greeting in TLS with anything else
            raise TransferError(
                f"registry {url.host} does not speak TLS: {exc.os_error.strerror or exc}",
                "--insecure reaches one that speaks plain HTTP",
            ) from exc
        except (aiohttp.ClientError, ConnectionError) as exc:
            kind = TransferError if _is_unknown_name(exc) else TransientError
            raise kind(f"registry {url.host}: {exc or type(exc).__name__}", UNREACHABLE_HINT) from exc

    async def _send(
        self, method: str, url: URL, headers: dict[str, str], body: Body | bytes | None, follow: bool
    ) -> aiohttp.ClientResponse:
        asked = False
        for _ in range(MAX_REDIRECTS + 1):
            used = self._authorizer.header if self._is_own(url) else None
            response = await self._send_once(method, url, headers, body, used)
            if response.status == 401 and self._is_own(url):
                challenge = response.headers.get("WWW-Authenticate", "")
                response.close()
                if asked or not challenge:
                    raise Unauthorized("unauthorized: access denied", login_hint())
                asked = True
                await self._authorize(parse_challenge(challenge), used)
            elif follow and response.status in _REDIRECTS and "Location" in response.headers:
                url = self.redirected(url, response.headers["Location"])
                response.close()
            else:
                return response
        raise TransferError(f"too many redirects: {MAX_REDIRECTS}")

    async def _send_once(
        self,
        method: str,
        url: URL,
        headers: dict[str, str],
        body: Body | bytes | None,
        authorization: str | None,
    ) -> aiohttp.ClientResponse:
        self.source.policy.check_url(url)
        if authorization is not None:
            headers = {**headers, "Authorization": authorization}
        data = body() if callable(body) else None if body is None else io.BytesIO(body)
        proxy = proxy_of(url)
        if proxy is not None:
            self._proxies.add((proxy.host, proxy.port))
        return await self._session.request(
            method, url, headers=headers, data=data, allow_redirects=False, proxy=proxy
        )

    def _is_own(self, url: URL) -> bool:
        own = self.source.registry
        return (url.scheme, url.host, url.port) == (own.scheme, own.host, own.port)

    def redirected(self, url: URL, location: str) -> URL:
        """Return where a Location header leads; raise TransferError if that would drop the encryption."""
        try:
            target = url.join(URL(location, encoded=True))
        except ValueError as exc:
            raise TransferError(f"registry sent an invalid location: {location[:200]!r}") from exc
        if url.scheme == "https" and target.scheme != "https":
            raise TransferError(f"redirect from https to {target.scheme}: {target.host}")
        return target

    async def _authorize(self, challenge: Challenge, refused: str | None) -> None:
        async with self._authorizing:
            if self._authorizer.header != refused:
                return
            registry = self.source.registry
            if challenge.scheme == "basic":
                self._authorizer.header = self._authorizer.basic(registry)
                if self._authorizer.header is None:
                    raise Unauthorized(
                        f"registry asks for a user and password: {registry.host}", login_hint()
                    )
                return
            self._authorizer.header = f"Bearer {await self._fetch_token(challenge)}"

    async def _fetch_token(self, challenge: Challenge) -> str:
        status, text = 401, "no answer"
        for url, authorization in self._authorizer.token_requests(challenge, self.source.registry):
            response = await self._send_once("GET", url, {}, None, authorization)
            async with response:
                if response.status == 200:
                    return parse_token(await read_limited(response, MAX_TOKEN_BYTES))
                status, text = response.status, await error_text(response)
            if status not in (400, 401, 403):
                break
        if status in (401, 403):
            raise Unauthorized("unauthorized: access denied", login_hint())
        raise TransferError(f"registry token: {status}: {text}")


def _is_unknown_name(exc: Exception) -> bool:
    """Say whether name servers answered that there is no such host; one that does not answer may later."""
    unknown = (socket.EAI_NONAME, socket.EAI_NODATA)
    return isinstance(exc, aiohttp.ClientConnectorDNSError) and exc.os_error.errno in unknown


async def read_limited(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    """Return a body whole; raise TransferError as soon as it is longer than allowed."""
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise TransferError("registry sent an encoding nobody asked for")
    data = bytearray()
    async for piece in response.content.iter_any():
        data += piece
        if len(data) > max_bytes:
            response.close()
            raise TransferError(f"registry answer is longer than {max_bytes} bytes")
    return bytes(data)


class _Error(msgspec.Struct):
    code: str = ""
    message: str = ""


class _Errors(msgspec.Struct):
    errors: list[_Error]


async def error_text(response: aiohttp.ClientResponse) -> str:
    """Return the messages of the protocol's error body, or the start of any other, as one printable line.

    Of a web page, which is no answer of a registry, nothing is worth a line.
    """
    data = bytearray()
    if response.headers.get("Content-Encoding", "identity").lower() == "identity":
        async for piece in response.content.iter_any():
            data += piece
            if len(data) >= MAX_ERROR_BYTES:
                break
    try:
        found = msgspec.json.decode(data, type=_Errors).errors
        text = "; ".join(error.message or error.code for error in found)[:MAX_ERROR_BYTES]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        text = bytes(data[:MAX_ERROR_BYTES]).decode("utf-8", "replace")
        if text.lstrip().startswith("<"):
            return "it answers with a web page"
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


async def status_error(response: aiohttp.ClientResponse, what: str) -> FtdError:
    """Return the error that an unexpected status of a registry means, to be raised by the caller."""
    if response.status == 404:
        return NotFound(f"{what}: file does not exist")
    text = f"{what}: {response.status}: {await error_text(response)}"
    if response.status in (401, 403):
        return Unauthorized(text, login_hint())
    return TransientError(text) if response.status in _TRANSIENT else TransferError(text)


async def retrying(limits: Limits, attempt: Callable[[], Awaitable[T]]) -> T:
    """Call ``attempt`` until it does not raise TransientError; the last failure becomes a TransferError."""
    for failures in range(1, limits.attempts + 1):
        try:
            return await attempt()
        except TransientError as exc:
            if failures == limits.attempts:
                raise TransferError(f"max retries exceeded: {exc.message}", exc.hint) from exc
            await asyncio.sleep(limits.pause_s(failures))
    raise AssertionError("the last attempt returns or raises")
