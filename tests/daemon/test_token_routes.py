"""Text to ids and back over HTTP, with a vocabulary of bytes."""

import pytest
from tiny_model import CONTROL

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_there_and_back(daemon):
    text = "Hé 日本<|im_start|>"
    answer = await daemon.json("/api/tokenize", {"model": "tiny", "content": text})
    assert answer == {"model": "tiny", "tokens": [*"Hé 日本".encode(), 256]}
    back = await daemon.json("/api/detokenize", {"model": "tiny", "tokens": answer["tokens"]})
    assert back == {"model": "tiny", "content": text}
    assert (await daemon.json("/api/ps"))["models"] == []  # nothing is loaded for it


async def test_control_tokens_only_where_wanted(daemon):
    body = {"model": "tiny", "text": CONTROL[0], "parse_special": False}
    assert (await daemon.json("/api/tokenize", body))["tokens"] == list(CONTROL[0].encode())


async def test_pieces_are_text_or_bytes(daemon):
    body = {"model": "tiny", "prompt": "aé", "with_pieces": True}
    assert (await daemon.json("/api/tokenize", body))["pieces"] == ["a", [0xC3], [0xA9]]


async def test_empty_text_has_no_tokens(daemon):
    assert (await daemon.json("/api/tokenize", {"model": "tiny", "content": ""}))["tokens"] == []
    assert (await daemon.json("/api/detokenize", {"model": "tiny"}))["content"] == ""


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        ("/api/tokenize", {"content": "x"}, 400, "model is required"),
        ("/api/tokenize", {"model": "tiny"}, 400, "content is required"),
        ("/api/tokenize", {"model": "tiny", "content": 5}, 400, "cannot use number for field content"),
        ("/api/tokenize", {"model": "nope", "content": "x"}, 404, "model 'nope' not found"),
        ("/api/detokenize", {"model": "tiny", "tokens": [260]}, 400, "between 0 and 259: 260"),
        ("/api/detokenize", {"model": "tiny", "tokens": [-1]}, 400, "between 0 and 259: -1"),
        ("/api/detokenize", {"model": "tiny", "tokens": [True]}, 400, "between 0 and 259: True"),
        ("/api/detokenize", {"model": "tiny", "tokens": ["a"]}, 400, "between 0 and 259"),
    ],
)
async def test_bad_bodies_are_refused(daemon, path, body, status, text):
    assert text in (await daemon.json(path, body, status))["error"]
