"""The error map against the whole tree: every class has a row, and keeps its kind in each dialect."""

import errno
import os
import pickle

import pytest

from ftd import errors
from ftd.api.api_errors import ERROR_TABLE, headers_of, of_ours, render, status_of


def all_classes(cls=errors.FtdError):
    yield cls
    for child in cls.__subclasses__():
        yield from all_classes(child)


def in_module():
    return sorted(
        {cls for cls in all_classes() if cls.__module__ == "ftd.errors"}, key=lambda cls: cls.__name__
    )


@pytest.mark.parametrize("cls", in_module())
def test_every_error_has_a_status_and_bodies(cls):
    exc = pickle.loads(pickle.dumps(cls("something: 7", "do that")))
    assert 400 <= status_of(exc) < 600
    assert render(exc, "ollama") == {"error": "something: 7", "hint": "do that"}
    body = render(exc, "openai")["error"]
    assert set(body) == {"message", "type", "param", "code"}
    assert body["message"] == "something: 7 (do that)"


def test_no_class_but_the_root_falls_through_to_the_root():
    rows = set(ERROR_TABLE) - {errors.FtdError}
    assert [
        cls for cls in in_module() if cls is not errors.FtdError and not issubclass(cls, tuple(rows))
    ] == []


@pytest.mark.parametrize(
    ("cls", "status"),
    [
        (errors.InvalidOption, 400),
        (errors.PromptTooLong, 400),
        (errors.UploadOutOfOrder, 416),
        (errors.Unauthorized, 401),
        (errors.Forbidden, 403),
        (errors.ModelNotFound, 404),
        (errors.Conflict, 409),
        (errors.Busy, 503),
        (errors.TransferError, 502),
        (errors.InsufficientSpace, 507),
        (errors.DamagedBlob, 500),
        (errors.EngineDied, 500),
    ],
)
def test_statuses(cls, status):
    assert status_of(cls("x")) == status


def test_openai_types_and_codes():
    assert render(errors.PromptTooLong("x"), "openai")["error"]["code"] == "context_length_exceeded"
    assert render(errors.PromptTooLong("x"), "openai")["error"]["type"] == "invalid_request_error"
    assert render(errors.ModelNotFound("x"), "openai")["error"]["type"] == "not_found_error"
    assert render(errors.EngineDied("x"), "openai")["error"]["type"] == "api_error"


def test_only_busy_tells_when_to_come_back():
    assert headers_of(errors.Busy("x")) == {"Retry-After": "1"}
    assert headers_of(errors.EngineDied("x")) == {}


@pytest.mark.parametrize(
    ("code", "status", "words"),
    [
        (errno.ENOSPC, 507, "no space left on the disk of the model store"),
        (errno.EDQUOT, 507, "no space left on the disk of the model store"),
        (errno.EFBIG, 507, "the file system of the model store takes no file of this size"),
        (errno.EACCES, 500, "the daemon cannot use a file: Permission denied: /m/blobs"),
        (errno.EROFS, 500, "the daemon cannot use a file: Read-only file system: /m/blobs"),
        (errno.EIO, 500, "internal error: OSError: [Errno 5] Input/output error: '/m/blobs'"),
    ],
)
def test_what_a_disk_says_is_no_bug_of_ours(code, status, words):
    exc = of_ours(OSError(code, os.strerror(code), "/m/blobs"))
    assert (status_of(exc), exc.message) == (status, words)
