"""Shapes typed by hand from what clients send."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


NAMES = st.sampled_from(["f", "g", ""])
IDS = st.sampled_from(["a", "b", "c", ""])


@given(st.lists(st.one_of(st.lists(st.tuples(IDS, NAMES), min_size=1, max_size=4), st.tuples(IDS, NAMES))))
def test_results_find_their_calls(turns: list[Any]) -> None:
    """By id; without one by name; else the oldest that is open."""
    messages: list[dict[str, Any]] = []
    expected: list[tuple[str, str]] = []
    open_calls: list[tuple[str, str]] = []
    count = 0
    for turn in turns:
        if isinstance(turn, list):
            calls = [{"id": each, "function": {"name": name}} for each, name in turn]
            messages.append({"role": "assistant", "content": "", "tool_calls": calls})
            open_calls += [(each or f"call{count + idx:05d}", name) for idx, (each, name) in enumerate(turn)]
            count += len(turn)
            continue
        call_id, name = turn
        messages.append({"role": "tool", "content": "r", "tool_call_id": call_id, "tool_name": name})
        fitting = [call for call in open_calls if call[0] == call_id]
        if not call_id:
            fitting = [call for call in open_calls if name and call[1] == name] or open_calls
        found = fitting[0] if fitting else ("", "")
        if fitting:
            open_calls.remove(found)
        expected.append((call_id or found[0], name or found[1]))
    results = [message for message in c.prepare(messages) if message["role"] == "tool"]
    assert [(each.get("tool_call_id", ""), each.get("name", "")) for each in results] == expected


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant", "tool"]), st.sampled_from(["", "x", "y"]))))
def test_alternating_merges_neighbours(turns: list[tuple[str, str]]) -> None:
    merged = c.alternating([{"role": role, "content": text} for role, text in turns])
    expected: list[tuple[str, str]] = []
    for role, text in turns:
        if expected and expected[-1][0] == role and role != "tool":
            expected[-1] = role, "\n\n".join(filter(None, (expected[-1][1], text)))
        else:
            expected.append((role, text))
    if not expected or expected[0][0] != "user":
        expected.insert(0, ("user", ""))
    assert [(message["role"], message["content"]) for message in merged] == expected
