"""Events to Anthropic's events and objects, against the shapes that the SDK's accumulator needs."""

import json
import re

import pytest

from ftd.api.anthropic_frames import MessageFrames
from ftd.api.request import CompletionRequest, Delta, Done, ToolCall

DONE = Done(reason="stop", prompt_tokens=10, cached_tokens=8, output_tokens=5)
CALL = ToolCall("call_1", 0, "f", {"a": "<é>"})


def frames(**options):
    made = MessageFrames(CompletionRequest(model="m", messages=[], options=options))
    made.begin(10)
    return made


def stream(*events, **options):
    made = frames(**options)
    return [part for event in events for part in made.events(event)]


def test_stream_of_text():
    start, *parts = stream(Delta(content="Hel"), Delta(content="lo"), DONE)
    assert start["type"] == "message_start"
    message = start["message"]
    assert re.fullmatch(r"msg_[0-9a-f]{24}", message["id"])
    assert (message["role"], message["model"], message["content"]) == ("assistant", "m", [])
    assert (message["usage"]["input_tokens"], message["usage"]["output_tokens"]) == (10, 0)
    assert parts == [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "lo"}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {
                "input_tokens": 2,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 8,
                "output_tokens": 5,
            },
        },
        {"type": "message_stop"},
    ]


def test_blocks_close_before_the_next_begins():
    other = ToolCall("call_2", 1, "g", {})
    parts = stream(Delta(thinking="hm", content="I see"), Delta(content="!", tool_calls=[CALL, other]), DONE)
    shape = [
        (p["type"].removeprefix("content_block_"), p["index"], p.get("content_block", {}).get("type"))
        for p in parts
        if "index" in p
    ]
    assert shape == [
        ("start", 0, "thinking"),
        ("delta", 0, None),
        ("stop", 0, None),
        ("start", 1, "text"),
        ("delta", 1, None),
        ("delta", 1, None),
        ("stop", 1, None),
        ("start", 2, "tool_use"),
        ("delta", 2, None),
        ("stop", 2, None),
        ("start", 3, "tool_use"),
        ("delta", 3, None),
        ("stop", 3, None),
    ]
    started = [p["content_block"] for p in parts if p["type"] == "content_block_start"]
    assert started[0] == {"type": "thinking", "thinking": "", "signature": ""}
    assert started[2] == {"type": "tool_use", "id": "call_1", "name": "f", "input": {}}
    partial = [p["delta"]["partial_json"] for p in parts if "partial_json" in p.get("delta", {})]
    assert [json.loads(text) for text in partial] == [{"a": "<é>"}, {}]
    assert parts[-2]["delta"]["stop_reason"] == "tool_use"


def test_empty_answer_has_no_block():
    assert [part["type"] for part in stream(DONE)] == ["message_start", "message_delta", "message_stop"]
    assert frames().whole(Delta(), DONE)["content"] == []


def test_sign_of_life_is_a_ping():
    assert stream(Delta())[1:] == [{"type": "ping"}]


def test_whole_answer():
    whole = frames().whole(Delta(thinking="hm", content="Hi", tool_calls=[CALL]), DONE)
    assert whole["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "text", "text": "Hi"},
        {"type": "tool_use", "id": "call_1", "name": "f", "input": {"a": "<é>"}},
    ]
    assert (whole["stop_reason"], whole["type"], whole["role"]) == ("tool_use", "message", "assistant")
    assert whole["usage"]["cache_read_input_tokens"] == 8


@pytest.mark.parametrize(
    ("done", "expected"),
    [
        (Done(reason="stop"), ("end_turn", None)),
        (Done(reason="length"), ("max_tokens", None)),
        (Done(reason="stop", stop="END"), ("stop_sequence", "END")),
        (Done(reason="stop", stop="of the model"), ("end_turn", None)),
    ],
)
def test_stop_reasons(done, expected):
    whole = frames(stop=["END"]).whole(Delta(content="x"), done)
    assert (whole["stop_reason"], whole["stop_sequence"]) == expected
    assert stream(done, stop=["END"])[-2]["delta"]["stop_reason"] == expected[0]
