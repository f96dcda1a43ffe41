"""The one place where an error of ours becomes an HTTP status and a body, in the dialect of its caller.

ollama     {"error": "…", "hint": "…"?}
openai     {"error": {"message", "type", "param", "code"}}
anthropic  {"type": "error", "error": {"type", "message"}, "request_id"}
"""

import errno
import secrets
from typing import Any, Literal

from aiohttp import web

from ftd.api import jsontext
from ftd.errors import (
    Busy,
    Conflict,
    CorruptData,
    EngineError,
    Forbidden,
    FtdError,
    InsufficientSpace,
    InvalidRequest,
    NotFound,
    PromptTooLong,
    TransferError,
    Unauthorized,
    UploadOutOfOrder,
)

# What the framework raises by itself: for a path or method without a route, a body that is too large
Refused = web.HTTPException
Dialect = Literal["ollama", "openai", "anthropic"]

# class -> (status, code); looked up along the method resolution order, so a subclass needs no row
ERROR_TABLE: dict[type[FtdError], tuple[int, str | None]] = {
    InvalidRequest: (400, None),
    PromptTooLong: (400, "context_length_exceeded"),
    UploadOutOfOrder: (416, None),
    Unauthorized: (401, "unauthorized"),
    Forbidden: (403, "forbidden"),
    NotFound: (404, "not_found"),
    Conflict: (409, "conflict"),
    Busy: (503, "server_busy"),
    InsufficientSpace: (507, "insufficient_space"),
    TransferError: (502, "transfer_failed"),
    CorruptData: (500, "corrupt_data"),
    EngineError: (500, "engine_error"),
    FtdError: (500, None),
}
RETRY_AFTER_S = 1
_OPENAI_TYPES = {400: "invalid_request_error", 404: "not_found_error"}
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def status_of(exc: FtdError) -> int:
    """Return the HTTP status of an error."""
    return _row(exc)[0]


def _row(exc: FtdError) -> tuple[int, str | None]:
    return next(ERROR_TABLE[cls] for cls in type(exc).__mro__ if cls in ERROR_TABLE)


def of_ours(exc: Exception) -> FtdError:
    """Return the error for one that nobody caught: what a disk says is a fact, all else is a bug."""
    if isinstance(exc, OSError) and exc.errno in (errno.ENOSPC, errno.EDQUOT):
        return InsufficientSpace(
            "no space left on the disk of the model store", "remove models or set FTD_MODELS to a larger disk"
        )
    if isinstance(exc, OSError) and exc.errno == errno.EFBIG:
        return InsufficientSpace(
            "the file system of the model store takes no file of this size", "set FTD_MODELS to another disk"
        )
    if isinstance(exc, OSError) and exc.filename and exc.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return FtdError(
            f"the daemon cannot use a file: {exc.strerror}: {exc.filename}",
            "let the daemon's user read and write there (FTD_MODELS names the model store)",
        )
    return FtdError(f"internal error: {type(exc).__name__}: {exc}")


def render(exc: FtdError, dialect: Dialect) -> dict[str, Any]:
    """Return the body that tells of an error."""
    if dialect == "ollama":
        body: dict[str, Any] = {"error": exc.message}
        return body | {"hint": exc.hint} if exc.hint else body
    status, code = _row(exc)
    message = f"{exc.message} ({exc.hint})" if exc.hint else exc.message
    if dialect == "anthropic" and isinstance(exc, PromptTooLong):
        # Claude Code looks for these words, and makes its conversation shorter
        message = f"prompt is too long: {message}"
    return render_text(status, message, dialect, code)


def render_text(status: int, message: str, dialect: Dialect, code: str | None = None) -> dict[str, Any]:
    """Return the body for a status and a message of whatever origin."""
    if dialect == "ollama":
        return {"error": message}
    if dialect == "anthropic":
        error = {"type": _ANTHROPIC_TYPES.get(status, "api_error"), "message": message}
        return {"type": "error", "error": error, "request_id": f"req_{secrets.token_hex(12)}"}
    kind = _OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 and not code else "api_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def refusal(exc: Refused, dialect: Dialect) -> web.Response:
    """Return the answer to a request that the framework refused: Ollama's text where no route is."""
    if exc.status == 404:
        return web.Response(status=404, text="404 page not found")
    if exc.status == 405:
        return web.Response(
            status=405, text="405 method not allowed", headers={"Allow": exc.headers["Allow"]}
        )
    body = jsontext.encode(render_text(exc.status, (exc.text or exc.reason).lower(), dialect))
    return web.Response(status=exc.status, body=body, content_type="application/json")


def headers_of(exc: FtdError) -> dict[str, str]:
    """Return the headers that an error answer carries besides its type."""
    return {"Retry-After": str(RETRY_AFTER_S)} if status_of(exc) == 503 else {}
