"""Bodies of ``/v1/responses`` to the internal request, against documented shapes and what Codex sends."""

import logging

import pytest

from ftd.api.jsontext import Fields
from ftd.api.kept_items import KeptItems
from ftd.api.openai_responses import parse_response
from ftd.errors import InvalidRequest, Unsupported

USER = {"role": "user", "content": "hi"}


def parse(*items, **body):
    return parse_response(Fields({"model": "m", "input": list(items) or "hi", **body}), KeptItems())


def test_text_is_a_message_of_the_user():
    request = parse()
    assert request.messages == [USER]
    assert request.options == {"temperature": 1.0}
    assert (request.stream, request.truncate, request.num_logprobs) == (False, False, -1)


def test_fields_become_options():
    request = parse(max_output_tokens=5, temperature=0, top_p=0.5, num_ctx=99, truncation="auto")
    assert request.options == {"temperature": 0, "top_p": 0.5, "num_predict": 5, "num_ctx": 99}
    assert request.truncate


def test_instructions_come_first():
    developer = {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "d"}]}
    assert parse(developer, USER, instructions="i").messages == [
        {"role": "system", "content": "i"},
        {"role": "developer", "content": "d"},
        USER,
    ]


def test_turn_of_the_assistant_is_one_message():
    request = parse(
        USER,
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "hm"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look"}]},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": '{"a":1}'},
        {"type": "function_call", "call_id": "c2", "name": "g", "arguments": ""},
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
        {"type": "web_search_call", "id": "ws"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]},
        {"role": "assistant", "content": "done"},
        {"role": "assistant", "content": "really"},
    )
    assert request.messages == [
        USER,
        {
            "role": "assistant",
            "content": "I look",
            "thinking": "hm",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}},
                {"id": "c2", "type": "function", "function": {"name": "g", "arguments": {}}},
            ],
        },
        {"role": "tool", "content": "one", "tool_call_id": "c1"},
        {"role": "tool", "content": "two", "tool_call_id": "c2"},
        {"role": "assistant", "content": "done", "thinking": "so"},
        {"role": "assistant", "content": "really"},
    ]


def test_thinking_that_led_to_nothing_is_no_message():
    assert parse({"type": "reasoning", "encrypted_content": "hm"}, USER).messages == [USER]


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        ({"model": ""}, InvalidRequest, "model is required"),
        ({"input": None}, InvalidRequest, "input is required"),
        ({"input": 5}, InvalidRequest, "field input"),
        ({"input": ["x"]}, InvalidRequest, "input[0]"),
        ({"input": [{"type": "magic"}]}, InvalidRequest, 'input[0]: unknown input item type: "magic"'),
        ({"input": [{"text": "x"}]}, InvalidRequest, "input item missing required 'type' field"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
            Unsupported,
            "file inputs are not currently supported",
        ),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, Unsupported, "input_image"),
        (
            {"input": [{"type": "function_call", "arguments": "{"}]},
            InvalidRequest,
            "invalid tool call arguments",
        ),
        (
            {"previous_response_id": "resp_1"},
            Unsupported,
            "no responses are stored here: previous_response_id",
        ),
        ({"prompt": {"id": "pmpt_1"}}, Unsupported, "no prompts are stored here: prompt"),
        ({"background": True}, Unsupported, "background"),
        ({"text": {"format": {"type": "xml"}}}, InvalidRequest, "invalid text.format type: xml"),
        ({"text": {"format": {"type": "json_schema"}}}, InvalidRequest, "text.format.schema"),
        ({"reasoning": {"effort": "huge"}}, InvalidRequest, 'invalid reasoning value: "huge"'),
        ({"top_logprobs": 21}, InvalidRequest, "top_logprobs must be between 0 and 20"),
    ],
)
def test_bad_bodies_are_refused(body, kind, text):
    with pytest.raises(kind) as caught:
        parse_response(Fields({"model": "m", "input": "hi", **body}), KeptItems())
    assert text in caught.value.message


def test_tools_of_every_kind_are_accepted(caplog):
    """Codex: function, namespace and web_search."""
    function = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}}
    space = {"type": "namespace", "name": "ns", "tools": [function | {"strict": True}]}
    with caplog.at_level(logging.WARNING):
        request = parse(tools=[function, space, {"type": "web_search"}, {"type": "custom", "name": "c"}])
    names = [tool["function"]["name"] for tool in request.tools]
    assert names == ["f", "ns.f"]
    assert request.tools[0]["function"] == {
        key: function[key] for key in ("name", "description", "parameters")
    }
    assert "web_search" in caplog.text and "custom" in caplog.text
    assert parse(tools=[function], tool_choice="none").tools == ()


def test_reasoning_and_format():
    schema = {"type": "object"}
    request = parse(
        reasoning={"effort": "xhigh", "summary": "auto"}, text={"format": {"type": "json_object"}}
    )
    assert (request.think, request.is_think_optional, request.format) == ("max", True, "json")
    wanted = {"type": "json_schema", "name": "x", "strict": True, "schema": schema}
    assert parse(text={"format": wanted, "verbosity": "low"}).format == schema
    assert parse(reasoning={"summary": "auto"}).think is None
    assert parse(include=["message.output_text.logprobs"]).num_logprobs == 0
    assert parse(top_logprobs=3).num_logprobs == 3
