"""Checked against vectors A.6 of the reference page and golden texts of each family, for every cut."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftd.chat.callbodies import ParsedCall
from ftd.chat.callformats import CallFormat
from ftd.chat.toolcalls import ToolCallParser

TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": properties}},
    }
    for name, properties in (
        ("add", {"a": {"type": "integer"}, "b": {"type": "number"}}),
        ("hello", {}),
        ("hello_all", {"text": {"type": "string"}, "flags": {"type": "array"}, "on": {"type": "boolean"}}),
    )
]
TAGGED = CallFormat("<tc>", "</tc>")
HERMES = CallFormat("<tool_call>", "</tool_call>")
XML = CallFormat("<tool_call>", "</tool_call>", "xml")
PAIRS = CallFormat("<tool_call>", "</tool_call>", "pairs")
MISTRAL = CallFormat("[TOOL_CALLS]")
BARE = CallFormat()
Result = tuple[str, list[tuple[str, dict[str, Any]]]]


def parsed(call_format: CallFormat, pieces: list[str]) -> Result:
    parser = ToolCallParser(call_format, TOOLS)
    parts = [parser.push(piece) for piece in pieces] + [parser.flush()]
    calls = [call for part in parts for call in part.calls]
    return "".join(part.content for part in parts), [(call.name, call.arguments) for call in calls]


LINES = ("hello_all", {"text": "a\nb"})
ADD = ("add", {"a": 1})
VECTORS: list[tuple[CallFormat, str, Result]] = [
    (TAGGED, 'One moment. <tc>{"name":"add","arguments":{"a":1}}</tc>', ("One moment. ", [ADD])),
    (CallFormat("<tc>"), 'One moment. <tc>{"name":"add","arguments":{"a":1}}', ("One moment. ", [ADD])),
    (
        CallFormat("[CALLS] ["),
        '[CALLS] [{"name":"add","arguments":{"a":1}}, {"name":"hello","arguments":{}}]',
        ("", [ADD, ("hello", {})]),
    ),
    (BARE, '{"name":"add","parameters":{"a":1}}', ("", [ADD])),
    (BARE, ' \n{"arguments":{"a":1},"name":"add"}', ("", [ADD])),
    (BARE, 'Sure: {"name":"add","arguments":{"a":1}}', ('Sure: {"name":"add","arguments":{"a":1}}', [])),
    (BARE, '{"name":"nobody","arguments":{"a":1}}', ('{"name":"nobody","arguments":{"a":1}}', [])),
    (BARE, '{"a": 1} is JSON', ('{"a": 1} is JSON', [])),
    (BARE, '[{"name":"add","arguments":{"a":1}}]', ("", [ADD])),
    (BARE, '<|python_tag|>{"name":"add","parameters":{"a":1}}', ("", [ADD])),
    (BARE, '{"name":"add","parameters":{"a":1}}; {"name":"hello"}', ("", [ADD, ("hello", {})])),
    (BARE, '{"add":{"a":1}}', ("", [ADD])),
    (BARE, "hello", ("hello", [])),
    (BARE, "<|python", ("<|python", [])),
    (HERMES, "I said hello.", ("I said hello.", [])),
    (HERMES, 'a<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>', ("a", [ADD])),
    (
        HERMES,
        '<tool_call>{"name":"add","arguments":{"a":1}}</tool_call>\n'
        '<tool_call>{"name":"hello","arguments":{}}</tool_call>\nDone.',
        ("Done.", [ADD, ("hello", {})]),
    ),
    (HERMES, '<tool_call>{"name":"add","arguments":"{\\"a\\":1}"}</tool_call>', ("", [ADD])),
    (HERMES, '<tool_call>{"name":"add","arguments":{"a":1}}]</tool_call>', ("", [ADD])),
    (HERMES, '<tool_call>{"name":"hello_all","arguments":{"text":"a\nb"}}</tool_call>', ("", [LINES])),
    (HERMES, '<tool_call>{"name":"add","arguments":{"a":1}}', ("", [ADD])),
    (HERMES, "<tool_call>{nonsense}</tool_call> so", ("<tool_call>{nonsense}</tool_call> so", [])),
    (HERMES, '<tool_call>{"name":"add","argum', ('<tool_call>{"name":"add","argum', [])),
    (HERMES, "a <tool_c", ("a <tool_c", [])),
    (HERMES, '<tool_call>{"name":"unknown","arguments":{"x":2}}</tool_call>', ("", [("unknown", {"x": 2})])),
    (
        MISTRAL,
        '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}, {"name": "hello", "arguments": {}}]',
        ("", [ADD, ("hello", {})]),
    ),
    (MISTRAL, '[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]hello[ARGS]{}', ("", [ADD, ("hello", {})])),
    (MISTRAL, 'Wait.[TOOL_CALLS]hello_all{"text": "]}{["}', ("Wait.", [("hello_all", {"text": "]}{["})])),
    (MISTRAL, '[TOOL_CALLS]add[ARGS]{"a": 1} and more', ("and more", [ADD])),
    (
        XML,
        "Hm.\n<tool_call>\n<function=hello_all>\n<parameter=text>\n1\n2\n</parameter>\n"
        "<parameter=flags>\n[1, \"a\"]\n</parameter>\n"
        "<parameter=on>\nTrue\n</parameter>\n</function>\n</tool_call>",
        ("Hm.\n", [("hello_all", {"text": "1\n2", "flags": [1, "a"], "on": True})]),
    ),
    (XML, "<tool_call><function=hello></function></tool_call>", ("", [("hello", {})])),
    (XML, "<tool_call>nothing</tool_call>", ("<tool_call>nothing</tool_call>", [])),
    (
        PAIRS,
        "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n"
        "<arg_key>b</arg_key>\n<arg_value>2.5</arg_value>\n</tool_call>",
        ("", [("add", {"a": 1, "b": 2.5})]),
    ),
    (PAIRS, "<tool_call>hello</tool_call>", ("", [("hello", {})])),
    (PAIRS, "<tool_call>two words</tool_call>", ("<tool_call>two words</tool_call>", [])),
]  # fmt: skip


@pytest.mark.parametrize(("call_format", "text", "expected"), VECTORS)
def test_vectors(call_format: CallFormat, text: str, expected: Result) -> None:
    assert parsed(call_format, [text]) == expected


@pytest.mark.parametrize(("call_format", "text", "expected"), VECTORS)
def test_vectors_character_by_character(call_format: CallFormat, text: str, expected: Result) -> None:
    assert parsed(call_format, list(text)) == expected


pieces = st.sampled_from(
    [
        *(
            "<tool_call>",
            "</tool_call>",
            "[TOOL_CALLS]",
            "[ARGS]",
            "<|python_tag|>",
            "add",
            "hello",
            " ",
            "\n",
        ),
        *(
            "{",
            "}",
            "[",
            "]",
            '"',
            "\\",
            ",",
            ":",
            "x",
            "<",
            '{"name":"add","arguments":{"a":1}}',
            "<function=add>",
        ),
    ]
)


@given(
    st.lists(pieces, max_size=10).map("".join),
    st.sampled_from([HERMES, XML, PAIRS, MISTRAL, BARE, CallFormat("[C] [")]),
)
def test_any_cut_gives_the_same(text: str, call_format: CallFormat) -> None:
    assert parsed(call_format, list(text)) == parsed(call_format, [text])


@given(st.lists(pieces, max_size=10).map("".join), st.sampled_from([HERMES, XML, PAIRS, MISTRAL, BARE]))
def test_without_calls_every_character_is_content(text: str, call_format: CallFormat) -> None:
    content, calls = parsed(call_format, [text])
    assert calls or content == text


def test_content_before_a_tag_is_not_held_back() -> None:
    assert ToolCallParser(HERMES, TOOLS).push("One moment <to").content == "One moment "


def test_a_call_comes_as_soon_as_it_is_whole() -> None:
    parser = ToolCallParser(HERMES, TOOLS)
    parser.push('<tool_call>{"name":"add","arguments":{"a":1}}')
    assert parser.push("</tool_call>").calls == [ParsedCall("add", {"a": 1})]


@pytest.mark.parametrize("call_format", [HERMES, MISTRAL, BARE])
def test_a_long_call_takes_linear_time(call_format: CallFormat) -> None:
    parser = ToolCallParser(call_format, TOOLS)
    tag = "" if call_format.is_bare else call_format.tag
    parser.push(f'{tag}{{"name":"hello_all","arguments":{{"text":"')
    started = time.process_time()
    for _ in range(20_000):
        parser.push("</tool {[ x")
    assert time.process_time() - started < 2
    assert parser.push('"}}' + call_format.closer).calls[0].name == "hello_all"


def test_deep_nesting_is_content() -> None:
    text = f"<tool_call>{'[' * 100_000}</tool_call>"
    assert parsed(HERMES, [text]) == (text, [])
