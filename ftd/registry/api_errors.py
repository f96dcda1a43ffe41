"""The one place where an error becomes a status and a body of the OCI distribution protocol.

{"errors": [{"code", "message", "detail"}]}
"""

from collections.abc import Mapping

import msgspec
from aiohttp import web

from ftd import errors

# What the framework raises by itself: for a path or method without a route
Refused = web.HTTPError
# … and for a body that is read as a whole
TooLarge = web.HTTPRequestEntityTooLarge


class ManifestInvalid(errors.InvalidRequest):
    """A manifest was sent that cannot be stored."""


class ManifestBlobUnknown(errors.InvalidRequest):
    """A manifest was sent before one of its blobs."""


class UnknownRepository(errors.NotFound):
    """No tag exists under this repository."""


# The first class that matches, in this order, gives status and code
ERROR_TABLE: tuple[tuple[type[errors.FtdError], int, str], ...] = (
    (errors.UploadOutOfOrder, 416, "BLOB_UPLOAD_INVALID"),
    (errors.UploadNotFound, 404, "BLOB_UPLOAD_UNKNOWN"),
    (errors.BlobNotFound, 404, "BLOB_UNKNOWN"),
    (errors.ModelNotFound, 404, "MANIFEST_UNKNOWN"),
    (UnknownRepository, 404, "NAME_UNKNOWN"),
    (ManifestInvalid, 400, "MANIFEST_INVALID"),
    (ManifestBlobUnknown, 400, "MANIFEST_BLOB_UNKNOWN"),
    (errors.InvalidName, 400, "NAME_INVALID"),
    (errors.InvalidDigest, 400, "DIGEST_INVALID"),
    (errors.DigestMismatch, 400, "DIGEST_INVALID"),
    (errors.InvalidRequest, 400, "UNSUPPORTED"),
    (errors.Busy, 503, "TOOMANYREQUESTS"),
    (errors.InsufficientSpace, 507, "UNKNOWN"),
    (errors.FtdError, 500, "UNKNOWN"),
)


def response(exc: errors.FtdError, headers: Mapping[str, str]) -> web.Response:
    """Return the answer that tells of an error."""
    status, code = next(row[1:] for row in ERROR_TABLE if isinstance(exc, row[0]))
    return _response(status, code, exc.message, exc.hint, headers)


def refusal(exc: Refused, headers: Mapping[str, str]) -> web.Response:
    """Return the answer to a request that the framework refused."""
    allowed = {"Allow": exc.headers["Allow"]} if "Allow" in exc.headers else {}
    return _response(exc.status, "UNSUPPORTED", exc.reason.lower(), None, {**headers, **allowed})


def _response(
    status: int, code: str, message: str, hint: str | None, headers: Mapping[str, str]
) -> web.Response:
    body = msgspec.json.encode({"errors": [{"code": code, "message": message, "detail": hint or ""}]})
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)
