"""OpenAI bodies to the internal request and events to chunks, against the API's documented shapes."""

import pytest

from ftd.api import openai
from ftd.api.jsontext import Fields
from ftd.api.request import Delta, Done, Logprob, ToolCall
from ftd.errors import InvalidOption, InvalidRequest, Unsupported

USER = {"role": "user", "content": "hi"}


def parse(**body):
    return openai.parse_chat(Fields({"model": "m", "messages": [USER], **body}))


def test_defaults_are_openais():
    request = parse()
    assert request.stream is False
    assert request.options == {"temperature": 1.0, "top_p": 1.0}
    assert request.truncate is False


def test_sampling_fields_become_options():
    request = parse(
        max_tokens=5, seed=3, stop="x", temperature=0, top_p=0.5, frequency_penalty=1, presence_penalty=2
    )
    assert request.options == {
        "temperature": 0,
        "top_p": 0.5,
        "num_predict": 5,
        "seed": 3,
        "stop": ["x"],
        "frequency_penalty": 1,
        "presence_penalty": 2,
    }


def test_newer_limit_wins_over_the_older():
    assert parse(max_tokens=5, max_completion_tokens=7).options["num_predict"] == 7


def test_ollamas_fields_are_honoured():
    request = parse(options={"num_ctx": 16384, "top_k": 3}, keep_alive=0, think=False)
    assert (request.options["num_ctx"], request.options["top_k"]) == (16384, 3)
    assert (request.keep_alive_ns, request.think) == (0, False)
    assert parse(num_ctx=99).options["num_ctx"] == 99


@pytest.mark.parametrize(
    ("effort", "think"),
    [
        ("none", False),
        ("minimal", "low"),
        ("low", "low"),
        ("medium", "medium"),
        ("high", "high"),
        ("xhigh", "max"),
    ],
)
def test_reasoning_effort(effort, think):
    assert parse(reasoning_effort=effort).think == think
    assert parse(reasoning={"effort": effort}).think == think


@pytest.mark.parametrize(
    ("body", "error", "words"),
    [
        ({"messages": []}, InvalidRequest, r"\[\] is too short - 'messages'"),
        ({"model": ""}, InvalidRequest, "model is required"),
        ({"reasoning_effort": "huge"}, InvalidRequest, "invalid reasoning value"),
        ({"n": 2}, Unsupported, "only one choice"),
        ({"logit_bias": {"5": 1}}, Unsupported, "logit_bias"),
        ({"functions": [{"name": "f"}]}, Unsupported, "functions"),
        ({"modalities": ["text", "audio"]}, Unsupported, "modalities audio"),
        ({"response_format": {"type": "xml"}}, InvalidRequest, "invalid response_format type: xml"),
        (
            {"response_format": {"type": "json_schema"}},
            InvalidRequest,
            "json_schema.schema: it must be object",
        ),
        ({"format": "yaml"}, InvalidOption, "invalid format"),
        ({"messages": [{"role": "user", "content": 5}]}, InvalidRequest, "invalid message content type"),
        ({"messages": [{"role": "user"}]}, InvalidRequest, "invalid message content type: null"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, Unsupported, "image_url"),
        (
            {"messages": [{"role": "user", "content": [{"type": "odd"}]}]},
            InvalidRequest,
            "invalid message format: a content part of type odd",
        ),
        ({"top_logprobs": 21}, InvalidRequest, "top_logprobs must be between 0 and 20"),
        (
            {
                "messages": [
                    {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "["}}]}
                ]
            },
            InvalidRequest,
            "invalid tool call arguments",
        ),
    ],
)
def test_refusals(body, error, words):
    with pytest.raises(error, match=words):
        parse(**body)


def test_thinking_is_switched_off_as_other_servers_have_it():
    assert parse(chat_template_kwargs={"enable_thinking": False}).think is False
    assert parse(chat_template_kwargs={"enable_thinking": False}, reasoning_effort="high").think == "high"
    # True is what a model that can think does anyway, and no reason to refuse one that cannot
    for switch in ({"enable_thinking": True}, {}, None):
        assert parse(chat_template_kwargs=switch).think is None


@pytest.mark.parametrize(
    ("arguments", "means"),
    [('{"a": 1}', {"a": 1}), ({"a": 1}, {"a": 1}), ("", {}), (" ", {}), (None, {}), ("{}", {})],
)
def test_arguments_of_past_calls_are_objects_or_texts(arguments, means):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    (message,) = parse(messages=[{"role": "assistant", "tool_calls": [call]}]).messages
    assert message["tool_calls"][0]["function"]["arguments"] == means


def test_what_was_said_without_words_comes_back_as_null():
    """An agent that sends a turn of thinking only, or a tool's empty result, is not stuck with a 400."""
    refusal = [{"type": "refusal", "refusal": "No."}]
    request = parse(
        messages=[
            {"role": "assistant", "content": None, "reasoning": "hm"},
            {"role": "tool", "tool_call_id": "c1", "content": None},
            {"role": "assistant", "content": refusal},
        ]
    )
    assert [message["content"] for message in request.messages] == ["", "", "No."]
    assert request.messages[0]["thinking"] == "hm"


def test_schemas_stand_where_other_servers_have_them():
    schema = {"type": "object", "properties": {}}
    for wanted in (
        {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
        {"type": "json_schema", "json_schema": {"schema": schema}, "schema": {"type": "null"}},
        {"type": "json_schema", "schema": schema},
        {"type": "json_object", "schema": schema},
    ):
        assert parse(response_format=wanted).format == schema
    assert parse(response_format={"type": "json_object"}).format == "json"


def test_calls_from_before_tools_are_kept():
    call = {"name": "f", "arguments": '{"a": 1}'}
    assistant, result = parse(
        messages=[
            {"role": "assistant", "content": None, "function_call": call},
            {"role": "function", "name": "f", "content": "r"},
        ]
    ).messages
    assert assistant["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}
    assert (result["name"], result["content"]) == ("f", "r")


def test_null_and_text_forms_that_mean_nothing_are_taken():
    parse(n=1, logit_bias=None, response_format={"type": "text"}, tools=None, user="u", store=True)
    parse(functions=[], modalities=["text"])
    assert parse(max_completion_tokens=0).options["num_predict"] == 0


def test_parts_are_joined_and_tool_results_get_their_name():
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}
    request = parse(
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "hm"},
            {"role": "tool", "tool_call_id": "c1", "content": "2"},
        ]
    )
    user, assistant, tool = request.messages
    assert user["content"] == "a\n\nb"
    assert assistant["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 1}}
    assert assistant["thinking"] == "hm"
    assert tool["tool_name"] == "add"


def chunks(*events, include_usage=False):
    frames = openai.ChatFrames(parse(), include_usage)
    return [chunk for event in events for chunk in frames.chunks(event)]


def test_stream_has_role_first_then_an_empty_finish_then_usage():
    done = Done(reason="stop", prompt_tokens=3, output_tokens=2, cached_tokens=1)
    out = chunks(Delta(content="Hel"), Delta(content="lo"), done, include_usage=True)
    assert [chunk["choices"][0]["delta"] for chunk in out[:3]] == [
        {"role": "assistant", "content": "Hel"},
        {"content": "lo"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in out[:3]] == [None, None, "stop"]
    assert out[3]["choices"] == []
    assert out[3]["usage"]["total_tokens"] == 5
    assert len({(chunk["id"], chunk["created"]) for chunk in out}) == 1


def test_stream_without_text_still_says_the_role():
    out = chunks(Done(reason="stop"))
    assert out[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len(out) == 2


def test_thinking_and_content_in_one_delta_are_two_chunks():
    out = chunks(Delta(thinking="t", content="c"))
    assert [chunk["choices"][0]["delta"] for chunk in out] == [
        {"role": "assistant", "reasoning": "t"},
        {"content": "c"},
    ]


def test_tool_calls_are_whole_and_change_the_reason():
    call = ToolCall("call_1", 0, "add", {"a": "é"})
    out = chunks(Delta(tool_calls=[call]), Done(reason="stop"))
    assert out[0]["choices"][0]["delta"]["tool_calls"] == [
        {
            "id": "call_1",
            "index": 0,
            "type": "function",
            "function": {"name": "add", "arguments": '{"a":"é"}'},
        }
    ]
    assert out[1]["choices"][0]["finish_reason"] == "tool_calls"


def test_whole_answer():
    frames = openai.ChatFrames(parse(), False)
    delta = Delta(content="Hi", thinking="hm", logprobs=[Logprob("Hi", b"Hi", -0.5)])
    body = frames.whole(delta, Done(reason="length", prompt_tokens=1, output_tokens=1))
    choice = body["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "Hi", "reasoning": "hm"}
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"]["content"] == [{"token": "Hi", "logprob": -0.5, "bytes": [72, 105]}]
    assert body["object"] == "chat.completion"


def test_completion_parses_and_frames():
    request = openai.parse_completion(Fields({"model": "m", "prompt": "p", "logprobs": 2, "max_tokens": 1}))
    assert (request.prompt, request.num_logprobs, request.options["num_predict"]) == ("p", 2, 1)
    frames = openai.CompletionFrames(request, False)
    out = [*frames.chunks(Delta(content="x")), *frames.chunks(Done(reason="length"))]
    assert [(c["choices"][0]["text"], c["choices"][0]["finish_reason"]) for c in out] == [
        ("x", None),
        ("", "length"),
    ]


def completion(**body):
    return openai.parse_completion(Fields({"model": "m", **body}))


def test_a_completion_takes_one_prompt_also_in_a_list():
    """LangChain's ``OpenAI`` always sends a list."""
    assert completion(prompt=["a"]).prompt == completion(prompt="a").prompt == "a"


@pytest.mark.parametrize(
    ("body", "error", "words"),
    [
        ({"prompt": ["a", "b"]}, Unsupported, "only one prompt is supported: 2"),
        ({"prompt": []}, Unsupported, "only one prompt is supported: 0"),
        ({"prompt": [[1, 2]]}, Unsupported, "a prompt of token ids"),
        ({"prompt": {}}, InvalidRequest, "field prompt: it must be string"),
        ({"prompt": "a", "echo": True}, Unsupported, "echo"),
        ({"prompt": "a", "best_of": 2}, Unsupported, "best_of"),
    ],
)
def test_refused_completions(body, error, words):
    with pytest.raises(error, match=words):
        completion(**body)
    completion(prompt="a", echo=False, best_of=1)


def test_response_format_is_a_format():
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    wanted = {"name": "x", "strict": True, "schema": schema}
    assert parse(response_format={"type": "json_schema", "json_schema": wanted}).format == schema
    assert parse(response_format={"type": "json_object"}).format == "json"
    assert parse(response_format={"type": "text"}).format is parse(response_format=None).format is None
    assert parse(format=schema).format == schema  # Ollama's own field
