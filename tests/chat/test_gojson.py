"""Checked against layer digests that Go's encoder produced."""

import hashlib
from typing import Any

import pytest

from ftd.chat import gojson


@pytest.mark.parametrize(
    ("value", "sort_keys", "digest"),
    [
        (
            {"top_k": 10, "temperature": 1.0, "stop": ["USER:", "ASSISTANT:"]},
            True,
            "1d0ad71299d48c2fb7ae2b98e683643e771f8a5b72be34942af90d97a91c1e37",
        ),
        (
            {"temperature": 0.6, "top_p": 0.7, "top_k": 10, "stop": ["USER:", "ASSISTANT:"]},
            True,
            "e29a7b3c4728",
        ),
        ({"stop": ["<|endoftext|>"], "temperature": 0.6, "top_k": 10, "top_p": 0.7}, True, "12f58bb75cb3"),
        (
            [{"role": "user", "content": "ping"}, {"role": "assistant", "content": "pong <ok>"}],
            False,
            "dda928e358ba699ea9b0c83bf0c66867e20846ceb8d0c3b1ef6e18d66fb42f5b",
        ),
    ],
)
def test_layers_have_the_digests_of_the_reference(value: Any, sort_keys: bool, digest: str) -> None:
    data = (gojson.dumps(value, sort_keys) + "\n").encode()
    assert hashlib.sha256(data).hexdigest().startswith(digest)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a<b>&\u2028\u2029ü\n", '"a\\u003cb\\u003e\\u0026\\u2028\\u2029ü\\n"'),
        ("\\b", '"\\\\b"'),
        ({"b": 1, "a": [1.5, True, None]}, '{"a":[1.5,true,null],"b":1}'),
    ],
)
def test_text(value: Any, text: str) -> None:
    assert gojson.dumps(value) == text


def test_infinities_are_refused() -> None:
    with pytest.raises(ValueError, match="Out of range"):
        gojson.dumps(float("inf"))
