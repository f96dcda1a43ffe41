"""Anthropic bodies to the internal request, against documented shapes and what Claude Code sends."""

import logging

import pytest

from ftd.api.anthropic import parse_messages
from ftd.api.jsontext import Fields
from ftd.errors import InvalidRequest, Unsupported

USER = {"role": "user", "content": "hi"}


def parse(*messages, **body):
    return parse_messages(
        Fields({"model": "m", "max_tokens": 9, "messages": list(messages) or [USER], **body})
    )


def test_nothing_is_injected():
    request = parse()
    assert request.options == {"num_predict": 9}
    assert (request.stream, request.truncate, request.think) == (False, False, None)
    assert request.messages == [USER] and request.tools == []


def test_sampling_fields_become_options():
    request = parse(temperature=0.5, top_p=0.6, top_k=7, stop_sequences=["a", "b"], options={"num_ctx": 99})
    assert request.options == {
        "num_ctx": 99,
        "temperature": 0.5,
        "top_p": 0.6,
        "top_k": 7,
        "num_predict": 9,
        "stop": ["a", "b"],
    }


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        ({"model": ""}, InvalidRequest, "model is required"),
        ({"max_tokens": None}, InvalidRequest, "max_tokens is required and must be positive"),
        ({"max_tokens": 0}, InvalidRequest, "max_tokens is required and must be positive"),
        ({"messages": []}, InvalidRequest, "messages is required"),
        (
            {"messages": [{"role": "user", "content": 5}]},
            InvalidRequest,
            "cannot use number for field content",
        ),
        ({"messages": [{"role": "user", "content": ["x"]}]}, InvalidRequest, "content block"),
        ({"system": 5}, InvalidRequest, "field system"),
        ({"output_config": {"format": "json"}}, InvalidRequest, "output_config.format"),
    ],
)
def test_bad_bodies_are_refused(body, kind, text):
    with pytest.raises(kind, match=text):
        parse_messages(Fields({"model": "m", "max_tokens": 9, "messages": [USER], **body}))


@pytest.mark.parametrize(
    ("block", "kind", "text"),
    [
        ({"type": "tool_use", "name": "f"}, InvalidRequest, "tool_use block missing required 'id' field"),
        ({"type": "tool_use", "id": "t"}, InvalidRequest, "tool_use block missing required 'name' field"),
        (
            {"type": "image", "source": {"type": "url", "url": "http://x"}},
            InvalidRequest,
            "invalid image source type: url. Only base64 images are supported.",
        ),
        ({"type": "image", "source": {"type": "base64", "data": ""}}, Unsupported, "kind of content: image"),
        ({"type": "document", "source": {"type": "base64"}}, Unsupported, "kind of content: document"),
    ],
)
def test_bad_blocks_are_refused(block, kind, text):
    with pytest.raises(kind) as caught:
        parse({"role": "assistant", "content": [block]})
    assert text in caught.value.message


def test_counting_needs_no_limit():
    request = parse_messages(Fields({"model": "m", "messages": [USER]}), is_count=True)
    assert request.options == {}


def test_system_is_a_string_or_blocks():
    assert parse(system="a").messages[0] == {"role": "system", "content": "a"}
    blocks = [
        {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "b"},
    ]
    assert parse(system=blocks).messages[0] == {"role": "system", "content": "ab"}
    assert parse(system="").messages == parse(system=None).messages == [USER]


@pytest.mark.parametrize("checksum", ["abc", "5f2"])
def test_line_that_changes_with_each_conversation_is_dropped(checksum):
    """PFX-1: the prefix cache must find the rest of the system prompt."""
    line = f"x-anthropic-billing-header: cc_version=2.1.332.{checksum}; cc_entrypoint=cli; cch={checksum};"
    blocks = [{"type": "text", "text": line}, {"type": "text", "text": "You are Claude Code."}]
    assert parse(system=blocks).messages[0]["content"] == "You are Claude Code."
    assert parse(system=f"{line}\nYou are Claude Code.").messages[0]["content"] == "You are Claude Code."
    assert parse(system=[blocks[0]]).messages == [USER]


def test_system_message_in_the_middle_is_the_same_as_blocks_and_as_string():
    """Claude Code sends it as a list on its turn and as a string later."""
    as_blocks = {"role": "system", "content": [{"type": "text", "text": "now"}]}
    as_string = {"role": "system", "content": "now"}
    assert parse(USER, as_blocks).messages == parse(USER, as_string).messages


def test_conversation_with_tools_in_native_form():
    request = parse(
        USER,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "x"},
                {"type": "text", "text": "I "},
                {"type": "text", "text": "look"},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"b": 1, "a": 2}},
                {"type": "tool_use", "id": "t2", "name": "g", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "and now"},
                {"type": "tool_result", "tool_use_id": "t1", "content": "one"},
                {
                    "type": "tool_result",
                    "tool_use_id": "t2",
                    "is_error": True,
                    "content": [{"type": "text", "text": "tw"}, {"type": "text", "text": "o"}],
                },
                {"type": "something_new", "x": 1},
            ],
        },
    )
    assert request.messages == [
        USER,
        {
            "role": "assistant",
            "content": "I look",
            "thinking": "hm",
            "tool_calls": [
                {"id": "t1", "type": "function", "function": {"name": "f", "arguments": {"b": 1, "a": 2}}},
                {"id": "t2", "type": "function", "function": {"name": "g", "arguments": {}}},
            ],
        },
        {"role": "tool", "content": "one", "tool_call_id": "t1"},
        {"role": "tool", "content": "two", "tool_call_id": "t2"},
        {"role": "user", "content": "and now"},
    ]


def test_results_alone_make_no_empty_message():
    result = {"type": "tool_result", "tool_use_id": "t", "content": None}
    assert parse({"role": "user", "content": [result]}).messages == [
        {"role": "tool", "content": "", "tool_call_id": "t"}
    ]


def test_tools_that_a_server_would_run_are_left_out_and_said_so(caplog):
    schema = {"type": "object", "properties": {"x": {"type": "string"}}}
    own = {"name": "f", "description": "d", "input_schema": schema, "defer_loading": True, "strict": True}
    with caplog.at_level(logging.WARNING):
        request = parse(tools=[own, {"type": "web_search_20250305", "name": "web_search"}])
    function = {"name": "f", "description": "d", "parameters": schema, "strict": True}
    assert request.tools == [{"type": "function", "function": function}]
    assert "web_search" in caplog.text
    assert parse(tools=[own], tool_choice={"type": "none"}).tools == ()


@pytest.mark.parametrize(
    ("body", "think"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, True),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, False),
        ({"thinking": {"type": "adaptive"}}, None),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "xhigh"}}, "high"),
        ({"output_config": {"effort": "max"}}, "max"),
        ({"output_config": {"effort": "who knows"}}, None),
    ],
)
def test_thinking(body, think):
    request = parse(**body)
    assert request.think == think and request.is_think_optional


def test_schema_of_structured_output():
    schema = {"type": "object"}
    wanted = {"type": "json_schema", "schema": schema}
    assert parse(output_config={"format": wanted}).format == parse(output_format=wanted).format == schema
