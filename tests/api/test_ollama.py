"""Ollama bodies and objects against the reference's examples, typed by hand."""

import json

import pytest

from ftd.api import ollama
from ftd.api.jsontext import Fields
from ftd.api.request import Delta, Done, Logprob, ToolCall
from ftd.errors import InvalidOption, InvalidRequest, Unsupported


def generate(**body):
    return ollama.parse_generate(Fields({"model": "m", **body}))


def chat(**body):
    return ollama.parse_chat(Fields({"model": "m", **body}))


def test_streaming_and_truncation_are_the_defaults():
    request = generate(prompt="p")
    assert (request.stream, request.truncate, request.num_logprobs, request.think) == (True, True, -1, None)


def test_nothing_to_answer_means_load():
    assert generate().is_empty and chat().is_empty
    assert not generate(prompt="x").is_empty
    assert not chat(messages=[{"role": "user", "content": ""}]).is_empty


@pytest.mark.parametrize(
    ("body", "error", "words"),
    [
        ({"top_logprobs": 21}, InvalidRequest, "top_logprobs must be between 0 and 20"),
        ({"think": "huge"}, InvalidRequest, r'invalid think value: "huge" \(must be "high", "medium"'),
        ({"think": 3}, InvalidRequest, r'think must be a boolean or string \("high"'),
        ({"keep_alive": "5"}, InvalidOption, 'time: missing unit in duration "5"'),
        ({"keep_alive": []}, InvalidOption, "Unsupported type"),
        ({"raw": True, "system": "s"}, InvalidRequest, "raw mode does not support"),
        ({"format": "xml"}, InvalidOption, 'invalid format: "xml"; expected "json" or a valid JSON Schema'),
        ({"format": ["json"]}, InvalidOption, "invalid format"),
        ({"format": True}, InvalidOption, "invalid format: true"),
        ({"images": ["aGk="]}, Unsupported, '"m" does not support images'),
        ({"context": ["a"]}, InvalidRequest, "token ids"),
        ({"prompt": 3}, InvalidRequest, "prompt"),
    ],
)
def test_refusals(body, error, words):
    with pytest.raises(error, match=words):
        generate(**body)


def test_values_that_mean_nothing_are_taken():
    generate(format="", images=[], options=None, context=None, keep_alive=None, think=None)
    chat(format="", tools=[], messages=[{"role": "user", "content": None, "images": []}])


def test_chat_needs_a_model_and_generate_leaves_it_to_the_store():
    with pytest.raises(InvalidRequest, match="model is required"):
        ollama.parse_chat(Fields({}))
    assert ollama.parse_generate(Fields({})).model == ""


def test_messages_are_read_in_any_case():
    call = {"function": {"name": "f", "arguments": {"b": 1, "a": 2}}}
    message = {"Role": "ASSISTANT", "Content": "c", "tool_calls": [call], "tool_name": "t"}
    shaped = chat(messages=[message]).messages[0]
    assert (shaped["role"], shaped["content"], shaped["tool_name"]) == ("assistant", "c", "t")
    assert list(shaped["tool_calls"][0]["function"]["arguments"]) == ["b", "a"]


def keys(body):
    return list(body)


def test_generate_objects_have_the_references_fields_in_order():
    frames = ollama.GenerateFrames(generate(prompt="p"))
    assert keys(frames.frame(Delta(content="Hel"))) == ["model", "created_at", "response", "done"]
    done = Done(
        reason="stop",
        total_ns=5,
        load_ns=4,
        prompt_tokens=3,
        prompt_ns=2,
        output_tokens=1,
        output_ns=9,
        context=[1, 2],
    )
    body = frames.frame(done)
    assert keys(body) == [
        *("model", "created_at", "response", "done", "done_reason", "context", "total_duration"),
        *("load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration"),
    ]
    assert body["context"] == [1, 2]


def test_zero_metrics_are_left_out():
    body = ollama.GenerateFrames(generate()).frame(Done(reason="load"))
    assert keys(body) == ["model", "created_at", "response", "done", "done_reason"]
    body = ollama.ChatFrames(chat()).frame(Done(reason="unload"))
    assert body["message"] == {"role": "assistant", "content": ""}
    assert body["done_reason"] == "unload"


def test_chat_objects():
    frames = ollama.ChatFrames(chat())
    body = frames.frame(Delta(thinking="t", tool_calls=[ToolCall("call_1", 1, "f", {"x": 1})]))
    assert json.dumps(body["message"]) == json.dumps(
        {
            "role": "assistant",
            "content": "",
            "thinking": "t",
            "tool_calls": [{"id": "call_1", "function": {"index": 1, "name": "f", "arguments": {"x": 1}}}],
        }
    )


def test_logprobs_carry_bytes_and_the_best():
    entry = Logprob("é", "é".encode(), -0.1, [Logprob("é", "é".encode(), -0.1), Logprob("e", b"e", -2.0)])
    body = ollama.ChatFrames(chat()).frame(Delta(logprobs=[entry]))
    assert body["logprobs"] == [
        {
            "token": "é",
            "logprob": -0.1,
            "bytes": [195, 169],
            "top_logprobs": [
                {"token": "é", "logprob": -0.1, "bytes": [195, 169]},
                {"token": "e", "logprob": -2.0, "bytes": [101]},
            ],
        }
    ]


def test_whole_answer_joins_texts_and_ends_like_the_last_object():
    delta, done = ollama.collect(
        [Delta(content="a", thinking="x"), Delta(content="b"), Done(reason="stop", output_tokens=2)]
    )
    body = ollama.GenerateFrames(generate()).whole(delta, done)
    assert (body["response"], body["thinking"], body["done"], body["eval_count"]) == ("ab", "x", True, 2)
    assert ollama.ChatFrames(chat()).whole(delta, done)["message"]["content"] == "ab"


def test_what_was_cut_is_reported():
    body = ollama.ChatFrames(chat()).frame(Done(reason="stop", truncated_messages=2, truncated_tokens=70))
    assert (body["truncated_messages"], body["truncated_tokens"]) == (2, 70)


def test_format_is_json_or_a_schema():
    schema = {"type": "object"}
    assert generate(format="json").format == chat(format="json").format == "json"
    assert generate(format=schema).format == chat(format=schema).format == schema
    assert generate(format={}).format == {}  # a schema that allows any JSON value
    assert generate(format="").format is chat(format=None).format is None


@pytest.mark.parametrize("arguments", [{"a": 1}, '{"a": 1}'])
def test_arguments_of_past_calls_are_objects_or_texts(arguments):
    """Clients made for OpenAI send the text."""
    call = {"function": {"name": "f", "arguments": arguments}}
    (message,) = chat(messages=[{"role": "assistant", "content": "", "tool_calls": [call]}]).messages
    assert message["tool_calls"][0]["function"]["arguments"] == {"a": 1}


@pytest.mark.parametrize("arguments", ["[1]", "{", "x", 5, [1]])
def test_arguments_that_are_no_object_are_refused(arguments):
    call = {"function": {"name": "f", "arguments": arguments}}
    with pytest.raises(InvalidRequest, match="arguments"):
        chat(messages=[{"role": "assistant", "content": "", "tool_calls": [call]}])
