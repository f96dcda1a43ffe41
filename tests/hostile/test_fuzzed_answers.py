"""Whatever a model writes, every API can send it, and what is streamed is what one object says.

Answers are made of the marks of each family's calls and of values right and wrong: a model in a loop, or one
that is asked to, writes anything.
"""

import json
import random

import pytest
from call_texts import FAMILIES
from examples import examples
from tiny_model import EOS, ids_of, tokenizer_json

from ftd.api import ollama, openai
from ftd.api.anthropic_frames import MessageFrames
from ftd.api.jsontext import Fields, encode
from ftd.api.openai_responses_frames import ResponseFrames
from ftd.api.request import CompletionRequest, Done
from ftd.chat.callformats import call_format
from ftd.chat.harmony import HarmonyParser
from ftd.chat.output import TaggedParser
from ftd.chat.thinking import ThinkingSplitter
from ftd.chat.tokenizer import Tokenizer
from ftd.chat.toolcalls import ToolCallParser
from ftd.daemon.answer import AnswerText
from ftd.engine.messages import Tokens
from ftd.ftw.format import Tokens as SpecialIds

TOKENIZER = Tokenizer.from_json(tokenizer_json(), SpecialIds(eos_ids=[EOS]))
# Schemas as clients declare them, some of which are none
TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": schema}}
    for schema in (
        {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": ["number", "null"]}}},
    )
] + [
    {
        "type": "function",
        "function": {"name": "g", "parameters": {"properties": {"a": {"anyOf": 5}, "b": 3}}},
    },
    {"type": "function", "function": {"name": "get_weather", "parameters": None}},
    {"type": "function", "function": {"name": "h", "parameters": {"properties": [1]}}},
]
VALUES = (
    *("NaN", "Infinity", "-1e999", "1e400", "-0", "007", "9" * 500, "9" * 5000, "true", "None", "null"),
    *(
        '"\\ud800"',
        "'\\ud83d'",
        '"\\u0000"',
        "\x00",
        "\x1b[2J",
        "\u2028",
        "é日本",
        "{",
        "}",
        "[",
        "]",
        '"',
        "'",
    ),
    *("[" * 70, "{" * 990, '{"a":' * 300 + "1" + "}" * 300, "[" * 900 + "]" * 900),
    *(
        '{"name":',
        '"f"',
        '"arguments":',
        '{"a":1,"b":NaN}',
        '{"name":{"name":["f"]}}',
        "(a=1e999)",
        "f",
        "g",
        "h",
    ),
    *(
        "<parameter=a>",
        "</parameter>",
        "<function=g>",
        "</function>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
    ),
    *(",", ":", "=", " ", "\n", "call:f{a:", '<|"|>', "functions.f:0", "<think>", "</think>", "```json"),
)


def pieces_of(family):
    """The pieces of a family's own calls, marks and texts, and all values."""
    needles, printed = FAMILIES[family]
    form = call_format("jinja", needles)
    marks = [form.tag, form.closer, form.opening, form.ending, form.separator]
    own = [printed[at : at + 12] for at in range(0, len(printed), 12)]
    return form, [*filter(None, marks)] * 4 + own + list(VALUES)


def answer_text(form):
    if form.is_harmony:
        return AnswerText(TOKENIZER, (), HarmonyParser(TOOLS), marks=form.marks)
    parser = TaggedParser(ThinkingSplitter("<think>", "</think>"), ToolCallParser(form, TOOLS))
    return AnswerText(TOKENIZER, (), parser, marks=form.marks)


def events_of(form, text, source):
    """The deltas of an answer whose ids come in groups, and its end."""
    answer, ids = answer_text(form), ids_of(text)
    deltas = []
    while ids:
        size = source.randint(1, 400)
        deltas.append(answer.push(Tokens(request_id=1, ids=ids[:size])))
        ids = ids[size:]
    deltas.append(answer.finish())
    return [
        *(delta for delta in deltas if not delta.is_empty),
        Done(reason=source.choice(("stop", "length"))),
    ]


def strict(data):
    """Decode JSON as clients do that know no NaN."""

    def refuse(name):
        raise AssertionError(f"{name} in JSON")

    assert b"\n" not in data
    return json.loads(data, parse_constant=refuse)


def check_openai(events, request):
    frames = openai.ChatFrames(request, include_usage=True)
    chunks = [strict(encode(chunk)) for event in events for chunk in frames.chunks(event)]
    whole = strict(encode(openai.ChatFrames(request, include_usage=False).whole(*ollama.collect(events))))
    message = whole["choices"][0]["message"]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == message["content"]
    assert "".join(delta.get("reasoning", "") for delta in deltas) == message.get("reasoning", "")
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert calls == message.get("tool_calls", [])
    assert [call["index"] for call in calls] == list(range(len(calls)))
    for call in calls:
        assert isinstance(strict(call["function"]["arguments"].encode("utf-8", "surrogatepass")), dict)


def check_others(events, request):
    joined = ollama.collect(events)
    chat = ollama.ChatFrames(request)
    objects = [strict(encode(chat.frame(event))) for event in events]
    whole = strict(encode(chat.whole(*joined)))["message"]
    assert "".join(each["message"]["content"] for each in objects) == whole["content"]
    anthropic = MessageFrames(request)
    anthropic.begin(1)
    for event in events:
        for value in anthropic.events(event):
            strict(encode(value))
    strict(encode(MessageFrames(request).whole(*joined)))
    responses = ResponseFrames(request, Fields({}))
    for event in events:
        for value in responses.events(event):
            strict(encode(value))
    strict(encode(ResponseFrames(request, Fields({})).whole(*joined)))


@pytest.mark.parametrize("family", FAMILIES)
def test_any_answer_can_be_sent_by_every_api(family):
    form, pieces = pieces_of(family)
    source = random.Random(family)
    request = CompletionRequest(model="m", messages=[{"role": "user", "content": "x"}], tools=TOOLS)
    for _ in range(examples(50)):
        text = "".join(source.choices(pieces, k=source.randint(1, 24)))
        events = events_of(form, text, source)
        check_openai(events, request)
        check_others(events, request)


def test_values_that_no_json_may_hold_were_among_them():
    """Else the test above would prove nothing."""
    form, _ = pieces_of(next(iter(FAMILIES)))
    found = 0
    for value in VALUES:
        text = f'{form.tag}{{"name": "f", "arguments": {{"b": {value}}}}}{form.closer}'
        *_, done = events = events_of(form, text, random.Random(1))
        assert isinstance(done, Done)
        found += any(call.arguments == {"b": None} for event in events[:-1] for call in event.tool_calls)
    assert found >= 4
