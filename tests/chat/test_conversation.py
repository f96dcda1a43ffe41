"""Shapes typed by hand from what clients send."""

from typing import Any

import pytest

from ftd.chat import conversation as c
from ftd.errors import InvalidRequest


def say(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def roles(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in messages]


def test_content_is_text_whatever_its_form() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}, "b"]
    messages = c.prepare([say("USER", "x"), {"role": "user"}, {"role": "user", "content": parts}])
    assert roles(messages) == [("user", "x"), ("user", ""), ("user", "ab")]


@pytest.mark.parametrize("name", ["thinking", "reasoning", "reasoning_content"])
def test_thinking_has_the_names_of_all_templates(name: str) -> None:
    (message,) = c.prepare([say("assistant", "x", **{name: "hm"})])
    assert message["thinking"] == message["reasoning_content"] == "hm"


def test_calls_without_ids_get_some_and_results_find_them() -> None:
    call = {"function": {"name": "f", "arguments": {"a": 1}}}
    other = {"function": {"name": "g", "arguments": '{"b": 2}'}}
    messages = c.prepare(
        [
            say("assistant", "", tool_calls=[call, other]),
            say("tool", "2", tool_name="g"),
            say("tool", "1"),
        ]
    )
    calls = messages[0]["tool_calls"]
    assert [x["id"] for x in calls] == ["call00000", "call00001"]
    assert calls[1]["function"] == {"name": "g", "arguments": {"b": 2}}
    assert (messages[1]["tool_call_id"], messages[1]["name"]) == ("call00001", "g")
    assert (messages[2]["tool_call_id"], messages[2]["name"]) == ("call00000", "f")


def test_ids_of_the_client_are_kept() -> None:
    call = {"id": "x1", "type": "function", "function": {"name": "f", "arguments": {}}}
    messages = c.prepare([say("assistant", "", tool_calls=[call]), say("tool", "1", tool_call_id="x1")])
    assert messages[0]["tool_calls"][0]["id"] == messages[1]["tool_call_id"] == "x1"
    assert messages[1]["name"] == "f"


@pytest.mark.parametrize(
    "message",
    [
        {"role": 3, "content": "x"},
        {"content": "x"},
        {"role": "user", "content": 3},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {}}]},
        {"role": "assistant", "content": "", "tool_calls": ["f"]},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]},
    ],
)
def test_malformed_messages_are_refused(message: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        c.prepare([message])


def test_bending() -> None:
    talk = [
        say("user", "u1"),
        say("assistant", "a"),
        say("developer", "d"),
        say("user", "u2"),
        say("user", "u3"),
    ]
    assert roles(c.system_first(talk))[0] == ("system", "d")
    assert roles(c.system_into_user(talk))[0] == ("user", "d\n\nu1")
    assert roles(c.alternating(c.system_first(talk)))[-1] == ("user", "u2\n\nu3")
    assert roles(c.alternating([say("system", "s"), say("assistant", "a")])) == [
        ("system", "s"),
        ("user", ""),
        ("assistant", "a"),
    ]
    assert roles(c.system_into_user([say("system", "s")])) == [("user", "s")]
    assert c.system_into_user([]) == [say("user", "")]


def test_tools_as_text_keeps_every_word() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    messages = c.tools_as_text([say("assistant", "wait", tool_calls=[call]), say("tool", "ok", name="f")])
    assert roles(messages) == [
        ("assistant", 'wait\n{"name": "f", "arguments": {"a": 1}}'),
        ("user", "Result of f:\nok"),
    ]


def test_short_ids_stay_paired() -> None:
    call = {"id": "call_very_long_id", "type": "function", "function": {"name": "f", "arguments": {}}}
    changed = c.short_ids(
        [say("assistant", "", tool_calls=[call]), say("tool", "1", tool_call_id="call_very_long_id")]
    )
    new_id = changed[0]["tool_calls"][0]["id"]
    assert len(new_id) == 9 and new_id.isalnum() and changed[1]["tool_call_id"] == new_id
