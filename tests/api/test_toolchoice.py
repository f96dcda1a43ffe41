"""``tool_choice`` in the words of each API: what it means, and which words are none."""

import pytest

from ftd.api.jsontext import Fields
from ftd.api.toolchoice import parse_anthropic, parse_openai
from ftd.chat.callgrammar import ToolChoice
from ftd.errors import InvalidRequest

TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "g"}},
]
FREE, FORCED = ToolChoice(), ToolChoice(is_forced=True)
BY_NAME = ToolChoice(is_forced=True, names=("g",), is_parallel=False)


@pytest.mark.parametrize(
    ("fields", "choice"),
    [
        ({}, FREE),
        ({"tool_choice": None}, FREE),
        ({"tool_choice": "auto", "parallel_tool_calls": None}, FREE),
        ({"tool_choice": "auto", "parallel_tool_calls": False}, ToolChoice(is_parallel=False)),
        ({"tool_choice": "required"}, FORCED),
        ({"Tool_Choice": "required"}, FORCED),  # fields match whatever their case
        ({"tool_choice": "required", "parallel_tool_calls": False}, ToolChoice(True, (), False)),
        # by name: chat completions put it into an object, responses do not; one name is one call
        ({"tool_choice": {"type": "function", "function": {"name": "g"}}}, BY_NAME),
        ({"tool_choice": {"type": "function", "name": "g"}, "parallel_tool_calls": True}, BY_NAME),
        # allowed tools: in an object of their own, or not
        (
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "auto", "tools": [{"name": "g"}]},
                }
            },
            ToolChoice(False, ("g",)),
        ),
        (
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "required",
                    "tools": [
                        {"type": "function", "name": "g"},
                        {"function": {"name": "f"}},
                        {"type": "mcp"},
                    ],
                },
                "parallel_tool_calls": False,
            },
            ToolChoice(True, ("g", "f"), False),
        ),
        ({"tool_choice": {"type": "allowed_tools", "tools": [{"name": "f"}]}}, ToolChoice(False, ("f",))),
    ],
)
def test_openai(fields, choice):
    assert parse_openai(Fields(fields), TOOLS) == (TOOLS, choice)


@pytest.mark.parametrize(
    ("fields", "choice"),
    [
        ({}, FREE),
        ({"tool_choice": {"type": "auto"}}, FREE),
        ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}, ToolChoice(is_parallel=False)),
        ({"tool_choice": {"type": "any"}}, FORCED),
        ({"tool_choice": {"type": "any", "disable_parallel_tool_use": True}}, ToolChoice(True, (), False)),
        ({"tool_choice": {"type": "tool", "name": "g"}}, BY_NAME),
        ({"tool_choice": {}}, FREE),
    ],
)
def test_anthropic(fields, choice):
    assert parse_anthropic(Fields(fields), TOOLS) == (TOOLS, choice)


def test_none_hides_the_tools():
    """A model that is not shown them does not try to call them."""
    assert parse_openai(Fields({"tool_choice": "none"}), TOOLS) == ((), FREE)
    assert parse_anthropic(Fields({"tool_choice": {"type": "none"}}), TOOLS) == ((), FREE)


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        ("maybe", "invalid tool_choice: maybe (must be auto, none, required or an object)"),
        (["auto"], "invalid tool_choice: ['auto'] (must be"),
        (True, "invalid tool_choice: True (must be"),
        ("x" * 1000, f"invalid tool_choice: {'x' * 50} (must be"),
        ({}, "invalid tool_choice: type  (name a function, or say auto, none, required)"),
        ({"type": "function"}, "invalid tool_choice: type function (name a function"),
        ({"type": "mcp", "name": "g"}, "invalid tool_choice: type mcp (name a function"),
        ({"type": 3}, "cannot use number for field tool_choice.type: it must be string"),
        ({"type": "function", "name": "h"}, "names a tool that is not among the tools: h"),
        ({"type": "function", "function": "g"}, "field tool_choice.function: it must be object"),
        (
            {"type": "allowed_tools", "mode": "never"},
            "invalid tool_choice mode: never (must be auto or required)",
        ),
        ({"type": "allowed_tools", "tools": ["g"]}, "tool_choice.allowed_tools.tools[0]: it must be object"),
        ({"type": "allowed_tools", "tools": [{"name": "g"}, {"name": "h"}]}, "not among the tools: h"),
    ],
)
def test_openai_words_that_are_none(choice, text):
    with pytest.raises(InvalidRequest) as caught:
        parse_openai(Fields({"tool_choice": choice}), TOOLS)
    assert text in caught.value.message


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        ({"type": "required"}, "invalid tool_choice type: required (must be auto, any, tool or none)"),
        ({"type": "tool"}, "names a tool that is not among the tools: (empty)"),
        ({"type": "tool", "name": "h" * 99}, f"not among the tools: {'h' * 60}"),
        ("any", "cannot use string for field tool_choice: it must be object"),
        (
            {"type": "any", "disable_parallel_tool_use": 1},
            "tool_choice.disable_parallel_tool_use: it must be bool",
        ),
    ],
)
def test_anthropic_words_that_are_none(choice, text):
    with pytest.raises(InvalidRequest) as caught:
        parse_anthropic(Fields({"tool_choice": choice}), TOOLS)
    assert text in caught.value.message


@pytest.mark.parametrize(
    "tools", [[], [{"type": "web_search"}], [{"function": {"description": "no name"}}], [{"function": "f"}]]
)
def test_a_forced_call_needs_a_tool_that_can_be_called(tools):
    for parse, choice in ((parse_openai, "required"), (parse_anthropic, {"type": "any"})):
        with pytest.raises(InvalidRequest, match="no tools that can be called here"):
            parse(Fields({"tool_choice": choice}), tools)
