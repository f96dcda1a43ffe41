"""The engine protocol against golden bytes and its own round trip."""

import msgspec
import pytest

from ftd.engine import messages
from ftd.engine.messages import Cancel, Embed, Failed, Finished, Generate, Load, TokenLogprob, Tokens

DOWN = [
    Load(config_path="/c", blob_paths={"sha256:00": "/b"}, context_tokens=4096),
    Generate(request_id=2**40, ids=[1, 2, 3], stop_ids=[2], num_logprobs=5, cache_salt="ü"),
    Cancel(request_id=7),
    Embed(request_id=8, sequences=[[1], [2, 3]], pooling="cls"),
]
UP = [
    Tokens(request_id=1, ids=[5], logprobs=[TokenLogprob(5, -0.5, [(5, -0.5), (6, -1.0)])]),
    Finished(
        request_id=1,
        reason="length",
        prompt_tokens=3,
        cached_tokens=0,
        output_tokens=1,
        queue_ns=1,
        prefill_ns=2,
        decode_ns=3,
    ),
    Failed(kind="OutOfMemory", message="needs 2, has 1", hint="ask for less"),
]


def body_of(frame: bytes) -> bytes:
    (length,) = messages.HEADER.unpack_from(frame)
    body = frame[messages.HEADER.size :]
    assert len(body) == length
    return body


def test_a_frame_is_a_length_and_a_tagged_map() -> None:
    # fixmap of 2: "type" → "cancel", "request_id" → 7
    golden = b"\x82\xa4type\xa6cancel\xaarequest_id\x07"
    assert messages.encode(Cancel(request_id=7)) == len(golden).to_bytes(4, "little") + golden


@pytest.mark.parametrize("message", DOWN, ids=lambda message: type(message).__name__)
def test_what_goes_down_comes_back(message: messages.Down) -> None:
    assert messages.decode_down(body_of(messages.encode(message))) == message


@pytest.mark.parametrize("message", UP, ids=lambda message: type(message).__name__)
def test_what_goes_up_comes_back(message: messages.Up) -> None:
    assert messages.decode_up(body_of(messages.encode(message))) == message


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x80", b"\x81\xa4type\xa4nope", b"\x82\xa4type\xa6cancel"])
def test_other_bytes_are_refused(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        messages.decode_down(body)


def test_a_message_of_the_other_direction_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        messages.decode_up(body_of(messages.encode(Cancel(request_id=7))))
