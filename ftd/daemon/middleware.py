"""What every request passes before its route: the Host check, CORS, and the map from errors to answers.

    Host (DNS rebinding) ──▶ Origin (other people's web pages) ──▶ errors ──▶ route

The Host check holds whatever the address we listen on, and comes first, so that a page under a foreign name
learns nothing, not even which origins are allowed.
"""

import ipaddress
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web

from ftd.address import parse_address
from ftd.api import api_errors, jsontext
from ftd.api.api_errors import Dialect
from ftd.config import ServerConfig
from ftd.errors import Forbidden, FtdError

logger = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

ORIGIN_KEY = web.RequestKey("cors_origin", str)
_LOCAL_SUFFIXES = (".localhost", ".local", ".internal")
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "0.0.0.0")
_APP_ORIGINS = ("app://*", "file://*", "tauri://*", "vscode-webview://*", "vscode-file://*")
_ALLOWED_METHODS = "GET,POST,PUT,PATCH,DELETE,HEAD,OPTIONS"
_STAINLESS = (
    "Arch Async Custom-Poll-Interval Helper-Method Lang Os Package-Version Poll-Helper Retry-Count "
    "Runtime Runtime-Version Timeout"
)
_ALLOWED_HEADERS = ",".join(
    (
        "Authorization,Content-Type,User-Agent,Accept,X-Requested-With,Openai-Beta,X-Api-Key,Anthropic-Version",
        *(f"X-Stainless-{name}" for name in _STAINLESS.split()),
    )
)


def dialect_of(request: web.Request) -> Dialect:
    """Return whose error bodies the caller understands."""
    if request.path.startswith("/v1/messages") or is_anthropic(request):
        return "anthropic"
    return "openai" if request.path.startswith("/v1/") else "ollama"


def is_anthropic(request: web.Request) -> bool:
    """Say whether Anthropic's client asks for models, whose path is OpenAI's too."""
    return request.path.startswith("/v1/models") and "anthropic-version" in request.headers


def error_response(exc: FtdError, dialect: Dialect) -> web.Response:
    """Return the answer that tells of an error, as long as no other has begun."""
    body = jsontext.encode(api_errors.render(exc, dialect)) + (b"" if dialect == "ollama" else b"\n")
    response = web.Response(
        status=api_errors.status_of(exc),
        body=body,
        headers=api_errors.headers_of(exc),
        content_type="application/json",
    )
    if dialect == "ollama":
        response.charset = "utf-8"
    return response


class HostCheck:
    """Refuses requests whose Host header is a name that could be anybody's."""

    def __init__(self, config: ServerConfig) -> None:
        address = parse_address(config.host)
        self._names = {"localhost", socket.gethostname().lower(), address.host.lower()}
        self._names |= {_host_of_origin(origin) for origin in config.origins}
        self._allow_all = "*" in config.origins
        # Among containers the daemon has a name of one label, which public DNS gives to no page.
        self._allow_single_label = not _is_loopback(address.host)

    def allows(self, host_header: str) -> bool:
        """Say whether a Host header is an address or a name of this machine, or was configured."""
        host = _without_port(host_header).lower()
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            if not host or host in self._names or host.endswith(_LOCAL_SUFFIXES):
                return True
            return self._allow_all or (self._allow_single_label and "." not in host)
        if address.is_loopback or address.is_private or address.is_link_local or address.is_unspecified:
            return True
        return host in self._names or str(address) in _own_addresses()

    async def __call__(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        host = request.headers.get("Host", "")
        if not self.allows(host):
            exc = Forbidden(
                f"host is not allowed: {host[:100]}", "call the daemon by its address, or set FTD_ORIGINS"
            )
            return error_response(exc, dialect_of(request))
        return await handler(request)


class Cors:
    """Allows web pages of configured origins, and of this machine, to call the API; refuses all others."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._patterns = [_pattern(origin) for origin in (*origins, *_builtin_origins())]

    def allows(self, origin: str) -> bool:
        """Say whether an Origin header is on the list."""
        return any(pattern.fullmatch(origin) for pattern in self._patterns)

    async def __call__(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        origin = request.headers.get("Origin")
        host = request.headers.get("Host", "")
        if origin is None or origin.lower() in (f"http://{host}".lower(), f"https://{host}".lower()):
            return await handler(request)
        if not self.allows(origin):
            exc = Forbidden(f"origin is not allowed: {origin[:100]}", "add it to FTD_ORIGINS")
            return error_response(exc, dialect_of(request))
        request[ORIGIN_KEY] = origin
        if request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers:
            return _preflight(request)
        return await handler(request)


async def add_origin(request: web.Request, response: web.StreamResponse) -> None:
    """Put the CORS headers on an answer just before it is sent; a hook of the application."""
    if ORIGIN_KEY in request:
        response.headers["Access-Control-Allow-Origin"] = request[ORIGIN_KEY]
        response.headers.add("Vary", "Origin")


def _preflight(request: web.Request) -> web.Response:
    headers = {
        "Access-Control-Allow-Methods": _ALLOWED_METHODS,
        "Access-Control-Allow-Headers": _ALLOWED_HEADERS,
        "Access-Control-Max-Age": "43200",
        "Vary": "Access-Control-Request-Method, Access-Control-Request-Headers",
    }
    if request.headers.get("Access-Control-Request-Private-Network") == "true":
        headers["Access-Control-Allow-Private-Network"] = "true"
    return web.Response(status=204, headers=headers)


async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn whatever a route raises before it answered into the caller's kind of error."""
    try:
        return await handler(request)
    except FtdError as exc:
        status = api_errors.status_of(exc)
        logger.log(logging.ERROR if status >= 500 and status != 503 else logging.DEBUG, "%s", exc)
        return error_response(exc, dialect_of(request))
    except api_errors.Refused as exc:
        return api_errors.refusal(exc, dialect_of(request))
    except Exception as exc:  # a bug of ours: the caller gets a clean answer, the log the traceback
        logger.exception("request failed path=%s", request.path)
        return error_response(api_errors.of_ours(exc), dialect_of(request))


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host if host.count(":") > 1 else host.partition(":")[0]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _own_addresses() -> set[str]:
    import psutil  # here: it takes long, and is asked about public addresses only

    return {
        entry.address.partition("%")[0] for entries in psutil.net_if_addrs().values() for entry in entries
    }


def _host_of_origin(origin: str) -> str:
    return _without_port(origin.partition("://")[2].partition("/")[0]).lower()


def _builtin_origins() -> list[str]:
    hosts = [f"{scheme}://{host}" for host in _LOCAL_HOSTS for scheme in ("http", "https")]
    return [*hosts, *(f"{host}:*" for host in hosts), *_APP_ORIGINS]


def _pattern(origin: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, origin.split("*"))), re.IGNORECASE)
