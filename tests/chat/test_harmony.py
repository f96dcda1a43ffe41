"""Channels of gpt-oss against what its format says, and for every cut against the whole text."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftd.chat.harmony import HarmonyParser

TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": {}}},
    {"type": "function", "function": {"name": "mcp.do-it"}},
]
Result = tuple[str, str, list[tuple[str, dict[str, Any]]]]
ANALYSIS = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"


def parsed(pieces: list[str]) -> Result:
    parser = HarmonyParser(TOOLS)
    outputs = [parser.push(piece) for piece in pieces] + [parser.flush()]
    calls = [(call.name, call.arguments) for output in outputs for call in output.calls]
    return "".join(o.thinking for o in outputs), "".join(o.content for o in outputs), calls


VECTORS: list[tuple[str, Result]] = [
    ("<|channel|>final<|message|>Hello.<|return|>", ("", "Hello.", [])),
    (f"{ANALYSIS}<|channel|>final<|message|>Hello.", ("hm", "Hello.", [])),
    (
        f'{ANALYSIS}<|channel|>commentary to=functions.f <|constrain|>json<|message|>{{"a": 1}}<|call|>',
        ("hm", "", [("f", {"a": 1})]),
    ),
    (
        f'{ANALYSIS} to=functions.f<|channel|>commentary json<|message|>{{"a": 1}}',
        ("hm", "", [("f", {"a": 1})]),
    ),
    (f"{ANALYSIS}<|channel|>commentary to=functions.f<|message|><|call|>", ("hm", "", [("f", {})])),
    ("<|channel|>commentary to=functions.mcp_do_it<|message|>{}", ("", "", [("mcp.do-it", {})])),
    (
        "<|channel|>commentary<|message|>I will look.<|end|><|start|>assistant"
        "<|channel|>commentary to=functions.f<|message|>{}<|call|>",
        ("", "I will look.", [("f", {})]),
    ),
    # TOOL-4: a call that is none is content
    ("<|channel|>commentary to=functions.f<|message|>{oops<|call|>", ("", "{oops", [])),
    # An answer that ended at its limit must not call with half of its arguments
    ('<|channel|>commentary to=functions.f<|message|>{"n": 12', ("", '{"n": 12', [])),
    ('<|channel|>commentary to=functions.f<|message|>{"n": [1', ("", '{"n": [1', [])),
    # A model that forgot a bracket, but said that the call ends
    ('<|channel|>commentary to=functions.f<|message|>{"n": [1]<|call|>', ("", "", [("f", {"n": [1]})])),
    # Where the mark of the end is an id that ends the answer, it is no text
    ('<|channel|>commentary to=functions.f<|message|>{"n": 12}', ("", "", [("f", {"n": 12})])),
    ("<|channel|>analysis<|message|>a<|channel|>final<|message|>b", ("a", "b", [])),
    ("<|start|>assistant<|channel|>final<|message|>b", ("", "b", [])),
    ("Hello.", ("", "Hello.", [])),
    ("to be or not", ("", "to be or not", [])),
    (" <b>x</b>", ("", " <b>x</b>", [])),
    ("<|channel|>analysis<|message|>cut of", ("cut of", "", [])),
    ("<|channel|>final", ("", "", [])),
    ("<|channel|>final<|message|>1 <| 2<|en", ("", "1 <| 2<|en", [])),
]


@pytest.mark.parametrize(("text", "expected"), VECTORS)
def test_vectors(text: str, expected: Result) -> None:
    assert parsed([text]) == expected


PIECES = (
    *("<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|call|>", "assistant", "analysis", "final"),
    *("commentary", " to=functions.f", " ", "x", '{"a":1}', "<", "<|", "|>", "to="),
)


@given(st.lists(st.sampled_from(PIECES), max_size=9).map("".join), st.data())
def test_any_cut_gives_the_same(text: str, data: st.DataObject) -> None:
    whole = parsed([text])
    assert parsed(list(text)) == whole
    cut = data.draw(st.integers(0, len(text)))
    assert parsed([text[:cut], text[cut:]]) == whole


def test_long_answers_take_linear_time() -> None:
    parser = HarmonyParser(TOOLS)
    parser.push('<|channel|>commentary to=functions.f<|message|>{"a": "')
    started = time.process_time()
    for _ in range(20_000):
        parser.push("<|x|> {[ <|en")
    assert time.process_time() - started < 2
    assert parser.push('"}<|call|>').calls[0].name == "f"
