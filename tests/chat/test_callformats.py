"""Formats as the templates of the families name them."""

import pytest

from ftd.chat.callbodies import ParsedCall, calls_in, parse_values, schemas_of
from ftd.chat.callformats import CallFormat, call_format


@pytest.mark.parametrize(
    ("kind", "source", "expected"),
    [
        ("jinja", "{{ '<tool_call>\\n' }}", CallFormat("<tool_call>", "</tool_call>")),
        ("jinja", "<tool_call>\n<function=", CallFormat("<tool_call>", "</tool_call>", "xml")),
        ("jinja", "<tool_call>{{ name }}<arg_key>", CallFormat("<tool_call>", "</tool_call>", "pairs")),
        ("jinja", "[TOOL_CALLS][", CallFormat("[TOOL_CALLS]", is_list=True)),
        ("jinja", "<|tool_call|>", CallFormat("<|tool_call|>", is_list=True)),
        ("jinja", "<|python_tag|>", CallFormat("{")),
        ("jinja", "{{ messages }}", CallFormat("{")),
        ("go", '{{ if .ToolCalls }}<tc>{"x"}{{ end }}', CallFormat("<tc>", "</tc>")),
        ("go", '{{ if .ToolCalls }}[CALLS]{"x"}{{ end }}', CallFormat("[CALLS]", "[/CALLS]")),
        ("go", "{{ if .ToolCalls }}[C] [{{ end }}", CallFormat("[C] [", is_list=True)),
        ("go", "{{ Broken }}", CallFormat("{")),
    ],
)
def test_formats(kind: str, source: str, expected: CallFormat) -> None:
    assert call_format(kind, source) == expected


def test_the_name_before_an_object_is_the_longest_declared_one() -> None:
    calls = calls_in({"a": 1}, " hello_all[ARGS]", ["hello", "hello_all"], False)
    assert calls == [ParsedCall("hello_all", {"a": 1})]


@pytest.mark.parametrize(
    "value",
    [
        {"name": "f", "arguments": {"a": 1}},
        {"function": {"name": "f", "arguments": {"a": 1}}},
        {"type": "function", "name": "f", "parameters": {"a": 1}},
        {"name": {"name": "f", "arguments": {"a": 1}}},
        [{"name": "f", "arguments": '{"a": 1}'}],
        {"f": {"a": 1}},
    ],
)
def test_shapes_of_a_call(value: object) -> None:
    assert calls_in(value, "", ["f"], True) == [ParsedCall("f", {"a": 1})]


@pytest.mark.parametrize("text", ["{", "", "{} x", "nope"])
def test_what_is_no_json_value(text: str) -> None:
    with pytest.raises(ValueError, match=r"Expecting|no value|no name|no key"):
        parse_values(text, is_whole=False)


def test_schemas_by_name() -> None:
    tools = [
        {"function": {"name": "f", "parameters": {"type": "object"}}},
        {"function": {}},
        {},
        {"function": {"name": "g"}},
    ]
    assert schemas_of(tools) == {"f": {"type": "object"}, "g": {}}
