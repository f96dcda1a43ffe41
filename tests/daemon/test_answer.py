"""The text of an answer against the whole decoded at once: however the ids arrive, the same comes out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_model import EOS, ids_of, tokenizer_json

from ftd.chat.callformats import CallFormat
from ftd.chat.output import TaggedParser
from ftd.chat.thinking import ThinkingSplitter
from ftd.chat.tokenizer import Tokenizer
from ftd.chat.toolcalls import ToolCallParser
from ftd.daemon.answer import AnswerText
from ftd.engine.messages import TokenLogprob, Tokens
from ftd.ftw.format import Tokens as SpecialIds

TOKENIZER = Tokenizer.from_json(tokenizer_json(), SpecialIds(eos_ids=[EOS]))
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


def answer(groups, stops=(), thinking=False, tools=False, max_calls=0):
    """Push groups of ids; returns (content, thinking, calls, counted ids)."""
    text = AnswerText(
        TOKENIZER,
        stops,
        TaggedParser(
            ThinkingSplitter("<think>", "</think>") if thinking else None,
            ToolCallParser(CallFormat("<tool_call>", "</tool_call>"), TOOLS) if tools else None,
        ),
        max_calls=max_calls,
    )
    deltas = []
    for group in groups:
        deltas.append(text.push(Tokens(request_id=1, ids=group)))
        if text.is_stopped:
            break
    deltas.append(text.finish())
    calls = [(call.idx, call.name, call.arguments) for delta in deltas for call in delta.tool_calls]
    return (
        "".join(delta.content for delta in deltas),
        "".join(delta.thinking for delta in deltas),
        calls,
        text.num_tokens,
    )


def cuts(draw, ids):
    groups = []
    while ids:
        size = draw(st.integers(1, len(ids)))
        groups.append(ids[:size])
        ids = ids[size:]
    return groups


@given(st.data(), st.text(max_size=30))
def test_text_does_not_depend_on_how_ids_arrive(data, text):
    ids = ids_of(text.encode("utf-8", "replace").decode())
    content, _, _, count = answer(cuts(data.draw, ids))
    assert (content, count) == (bytes(ids).decode(), len(ids))


@given(
    st.data(), st.text(alphabet="ab", max_size=20), st.lists(st.text(alphabet="ab", min_size=1, max_size=3))
)
def test_stop_string_ends_text_and_count_wherever_it_is_cut(data, text, stops):
    ids = ids_of(text)
    ends = [(text.find(stop) + len(stop), -len(stop)) for stop in stops if stop in text]
    end, negative_len = min(ends, default=(len(text), 0))
    content, _, _, count = answer(cuts(data.draw, ids), stops)
    assert (content, count) == (text[: end + negative_len], end)


@given(st.data())
def test_thinking_and_calls_are_found_however_they_are_cut(data):
    text = '<think>hm</think>ok <tool_call>{"name":"add","arguments":{"a":1}}</tool_call>'
    content, thinking, calls, _ = answer(cuts(data.draw, ids_of(text)), thinking=True, tools=True)
    assert (content.strip(), thinking, calls) == ("ok", "hm", [(0, "add", {"a": 1})])


def test_unfinished_call_comes_out_as_text():
    assert answer([ids_of('a <tool_call>{"name"')], tools=True)[0] == 'a <tool_call>{"name"'


def test_stop_string_held_back_at_the_end_is_shown():
    assert answer([ids_of("abc")], ["cd"])[0] == "abc"


@pytest.mark.parametrize("value", [0.0, 1e-9])
def test_logprobs_are_never_positive_and_stop_with_the_text(value):
    text = AnswerText(TOKENIZER, ["b"])
    entries = [TokenLogprob(token, value, [(token, value)]) for token in ids_of("abc")]
    delta = text.push(Tokens(request_id=1, ids=ids_of("abc"), logprobs=entries))
    assert [(entry.token, entry.logprob) for entry in delta.logprobs] == [("a", 0.0), ("b", 0.0)]
    assert delta.logprobs[0].top[0].logprob == 0.0


def test_after_the_last_call_that_may_be_nothing_follows():
    call = '<tool_call>{"name":"add","arguments":{"n":%d}}</tool_call>'
    content, _, calls, count = answer(
        [ids_of(f"a{call % 1}"), ids_of(f"{call % 2} b")], tools=True, max_calls=1
    )
    assert (content, calls) == ("a", [(0, "add", {"n": 1})])
    assert count == len(f"a{call % 1}")
