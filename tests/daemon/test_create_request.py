"""Checked against the list of checks of the reference page."""

from typing import Any

import pytest

from ftd.daemon.create_request import check_request
from ftd.errors import FtdError, InvalidDigest, InvalidName, InvalidRequest, Unsupported

DIGEST = "sha256:" + "a" * 64


def test_a_whole_request() -> None:
    request = check_request(
        {
            "name": "ns/m:t",
            "files": {"sub/model.gguf": DIGEST},
            "system": None,
            "license": "MIT",
            "parameters": {"stop": ["a"]},
            "messages": [{"role": "USER", "content": "x", "images": []}],
            "stream": False,
        }
    )
    assert request.name.display == "ns/m:t"
    assert request.files == {"sub/model.gguf": DIGEST}
    assert (request.system, request.licenses) == ("", ["MIT"])
    assert request.messages == [{"role": "user", "content": "x"}]


def test_a_base_model_wins_over_files() -> None:
    assert check_request({"model": "m", "from": "b", "files": {"a": DIGEST}}).files == {}


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        ({}, InvalidName, "invalid model name"),
        ({"model": "a b", "from": "x"}, InvalidName, "invalid model name"),
        ({"model": "m", "from": "../x"}, InvalidName, "invalid model name"),
        ({"model": "m"}, InvalidRequest, "neither 'from' or 'files' was specified"),
        *(
            ({"model": "m", "files": {path: DIGEST}}, InvalidRequest, "file path must be relative")
            for path in ("/a", "../a", "a/../b", "a//b", "./a", "a/", "", "a\0b")
        ),
        *(
            ({"model": "m", "files": {"a": digest}}, InvalidDigest, "invalid digest format")
            for digest in ("", "sha256:1", "sha256-" + "a" * 64, DIGEST + "0", DIGEST.upper(), 3, None)
        ),
        ({"model": "m", "files": [DIGEST]}, InvalidRequest, "files must be an object"),
        ({"model": 3, "from": "x"}, InvalidRequest, "model must be a string"),
        ({"model": "m", "from": "x", "license": 3}, InvalidRequest, "license must be"),
        ({"model": "m", "from": "x", "messages": [{"role": "robot"}]}, InvalidRequest, "role must be"),
        ({"model": "m", "from": "x", "messages": ["hi"]}, InvalidRequest, "message needs a role"),
        ({"model": "m", "from": "x", "parameters": []}, InvalidRequest, "parameters must be an object"),
        ({"model": "m", "from": "x", "quantize": "q3_K_M"}, Unsupported, "quantization type q3_K_M"),
        ({"model": "m", "from": "x", "quantize": "q8_0"}, Unsupported, "keeps its quantization"),
        ({"model": "m", "from": "x", "adapters": {"a": DIGEST}}, Unsupported, "adapters are not supported"),
        ({"model": "m", "from": "x", "remote_host": "h"}, Unsupported, "remote models are not supported"),
    ],
)  # fmt: skip
def test_what_is_refused(body: dict[str, Any], error: type[FtdError], message: str) -> None:
    with pytest.raises(error) as caught:
        check_request(body)
    assert message in caught.value.message


@pytest.mark.parametrize("field", ["renderer", "parser", "requires", "info"])
def test_fields_without_effect_are_logged(field: str, caplog: pytest.LogCaptureFixture) -> None:
    check_request({"model": "m", "from": "x", field: "y"})
    assert field in caplog.text
