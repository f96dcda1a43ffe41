"""Errors as the OCI distribution specification writes them."""

import json
from typing import Any

import pytest
from aiohttp import web

from ftd import errors
from ftd.registry import api_errors

# The specification's table of codes (1.1, "Error Codes"), and docker's own for what is not the client's fault
CODES = """BLOB_UNKNOWN BLOB_UPLOAD_INVALID BLOB_UPLOAD_UNKNOWN DIGEST_INVALID MANIFEST_BLOB_UNKNOWN
    MANIFEST_INVALID MANIFEST_UNKNOWN NAME_INVALID NAME_UNKNOWN SIZE_INVALID UNAUTHORIZED DENIED UNSUPPORTED
    TOOMANYREQUESTS UNKNOWN""".split()  # noqa: SIM905


def body_of(response: web.Response) -> Any:
    assert isinstance(response.body, bytes)
    assert response.content_type == "application/json"
    return json.loads(response.body)


def test_every_error_has_a_row_and_every_row_a_code_of_the_specification() -> None:
    pending: list[Any] = [errors.FtdError]
    while pending:
        cls = pending.pop()
        pending.extend(cls.__subclasses__())
        assert any(issubclass(cls, row[0]) for row in api_errors.ERROR_TABLE)
    assert {row[2] for row in api_errors.ERROR_TABLE} <= set(CODES)


def test_a_row_of_a_class_comes_before_that_of_its_base() -> None:
    classes = [row[0] for row in api_errors.ERROR_TABLE]
    for place, cls in enumerate(classes):
        assert not any(issubclass(later, cls) for later in classes[place + 1 :])


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.BlobNotFound("gone", "look elsewhere"), 404, "BLOB_UNKNOWN"),
        (errors.UploadOutOfOrder("gone", "look elsewhere", 5), 416, "BLOB_UPLOAD_INVALID"),
        (errors.DigestMismatch("gone", "look elsewhere"), 400, "DIGEST_INVALID"),
        (api_errors.ManifestBlobUnknown("gone", "look elsewhere"), 400, "MANIFEST_BLOB_UNKNOWN"),
        (errors.PromptTooLong("gone", "look elsewhere"), 400, "UNSUPPORTED"),
        (errors.DamagedBlob("gone", "look elsewhere"), 500, "UNKNOWN"),
    ],
)
def test_an_error_is_a_list_of_one(error: errors.FtdError, status: int, code: str) -> None:
    response = api_errors.response(error, {"X-Of": "ours"})
    assert (response.status, response.headers["X-Of"]) == (status, "ours")
    assert body_of(response) == {"errors": [{"code": code, "message": "gone", "detail": "look elsewhere"}]}


def test_without_a_hint_the_detail_is_empty() -> None:
    assert body_of(api_errors.response(errors.Busy("full"), {}))["errors"][0]["detail"] == ""


def test_a_refusal_says_which_methods_there_are() -> None:
    response = api_errors.refusal(web.HTTPMethodNotAllowed("PUT", ["GET", "HEAD"]), {"X-Of": "ours"})
    assert (response.status, response.headers["Allow"], response.headers["X-Of"]) == (405, "GET,HEAD", "ours")
    assert body_of(response)["errors"][0] == {
        "code": "UNSUPPORTED",
        "message": "method not allowed",
        "detail": "",
    }
    assert "Allow" not in api_errors.refusal(web.HTTPNotFound(), {}).headers
