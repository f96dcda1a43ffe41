"""Pieces of grammars: what each matches, as the library that reads them says; none is written twice."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftd.chat.lark import Lark
from ftd.engine.grammar_library import new_matcher, tokenizer_of
from ftd.engine.messages import Vocabulary

SPECIAL = {"<|call|>": 256, "<|end|>": 257, "<|call|>x": 258, "": 259}
END = 260
VOCABULARY = Vocabulary(
    tokens=[*(bytes([byte]) for byte in range(256)), b"<|call|>", b"<|end|>", b"<|call|>x", b"", b"<eos>"],
    special_ids=[256, 257, 258, 259, END],
    eos_ids=[END],
)
LIBRARY = tokenizer_of(VOCABULARY)


def ids_of(text: str) -> list[int]:
    """Return the ids of a text as a model writes it: the longest special tokens in it are such."""
    parts = re.split(r"(<\|call\|>x|<\|call\|>|<\|end\|>)", text)
    return [i for part in parts for i in ([SPECIAL[part]] if part in SPECIAL and part else part.encode())]


def matches(lark: Lark, start: str, ids: list[int] | str) -> bool:
    """Say whether a whole text is in the grammar."""
    matcher = new_matcher(LIBRARY, lark.text(start))
    assert not matcher.is_error(), matcher.get_error()
    tokens = ids_of(ids) if isinstance(ids, str) else ids
    return matcher.validate_tokens([*tokens, END]) == len(tokens) + 1


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12))
def test_a_literal_matches_itself_alone(text: str) -> None:
    lark = Lark(SPECIAL)
    body = lark.literal(text)
    assert matches(lark, body, text)
    assert not matches(lark, body, text + "x") and not matches(lark, body, text[:-1])


@pytest.mark.parametrize("text", ["a<|call|>b<|end|>", "<|call|>x", "<|call|><|call|>", "<|end|>"])
def test_special_tokens_in_a_literal_come_by_their_ids(text: str) -> None:
    lark = Lark(SPECIAL)
    body = lark.literal(text)
    assert matches(lark, body, text)
    assert not matches(lark, body, list(text.encode())), "the bytes of its text are no special token"


def test_without_special_tokens_all_is_text() -> None:
    lark = Lark({})
    assert lark.literal("<|call|>") == '"<|call|>"' and not lark.has("<|call|>")
    assert Lark(SPECIAL).has("<|call|>")


@pytest.mark.parametrize(
    ("mark", "inside", "ends"),
    [
        ("</s>", ["", "a</b>", "</", "line\nline"], ["</s>"]),
        ("<|end|>", ["", "</s>", "é\n"], ["<|end|>"]),
        ("\n.*+?(<|call|>", ["", "a\n", "\n.x"], ["\n.*+?(<|call|>"]),
        ("[](){}|\\/$^<|end|>", ["", "\\"], ["[](){}|\\/$^<|end|>"]),
        ("<|call|>then<|end|>", ["", "x"], ["<|call|>then<|end|>"]),
    ],
)
def test_until_matches_any_text_and_the_mark(mark: str, inside: list[str], ends: list[str]) -> None:
    lark = Lark(SPECIAL)
    body = lark.until(mark)
    for text in inside:
        for end in ends:
            assert matches(lark, body, text + end)
            assert not matches(lark, body, text), "without the mark it has not ended"
        assert not matches(lark, body, text + mark + "more")


def test_until_stops_at_the_first_mark() -> None:
    lark = Lark(SPECIAL)
    body = f"{lark.until('END')} {lark.literal('tail')}"
    assert matches(lark, body, "some EN of itENDtail")
    assert not matches(lark, body, "aENDbENDtail"), "what follows the first mark is bound"


def test_the_same_is_written_once() -> None:
    lark = Lark(SPECIAL)
    assert lark.until("</s>") == lark.until("</s>")
    assert lark.rule('"a" "b"') == lark.rule('"a" "b"') != lark.rule('"a"')
    assert lark.json({"type": "string"}) == lark.json({"type": "string", "x-guidance": {"lenient": False}})
    lines = lark.text("BLANKS?").splitlines()
    assert len(lines) == len(set(lines))
    assert lines[0] == "%llguidance {}" and lines[1] == "start: BLANKS?"


def test_json_is_bound_by_its_schema() -> None:
    lark = Lark(SPECIAL)
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    body = f"{lark.literal('<|call|>')} {lark.json(schema)}"
    assert matches(lark, body, '<|call|>{"n": 3}') and matches(lark, body, '<|call|>{"n":3}')
    for text in ('{"n": 3}', '<|call|>{"n": "3"}', "<|call|>{}", '<|call|>{"n": 3} '):
        assert not matches(lark, body, text)


def test_a_choice_matches_each_of_its_bodies() -> None:
    lark = Lark(SPECIAL)
    bodies = [lark.literal(text) for text in ("a", "bb<|end|>", "c")]
    body = lark.choice(bodies)
    assert all(matches(lark, body, text) for text in ("a", "bb<|end|>", "c"))
    assert not any(matches(lark, body, text) for text in ("", "b", "ac", "bb"))
    assert lark.choice(['"only"']) == '"only"'


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("BLANKS", [" ", " \n" * 4], ["", "\t", " " * 9]),
        ("QUOTED", ["''", "'a\\'b'", "'\"'", "'é'"], ["'", "'a", "'a'b'", "'a\nb'", "'\\\n'"]),
        ("DIGITS", ["0", "1234"], ["", "12345", "-1", "1.5"]),
        ("WORD", ["a-b_9", "x" * 40], ["", "x" * 41, "a b", "é"]),
        ("TEXT", ["", "a\nb", "é"], []),
    ],
)
def test_terminals(name: str, inside: list[str], outside: list[str]) -> None:
    lark = Lark(SPECIAL)
    body = lark.terminal(name)
    assert [text for text in inside if not matches(lark, body, text)] == []
    assert [text for text in outside if matches(lark, body, text)] == []
    assert lark.text(body).count(f"{name}: ") == 1


def test_a_few_blanks_or_none() -> None:
    lark = Lark(SPECIAL)
    body = f"{lark.blanks()} {lark.literal('x')}"
    assert all(matches(lark, body, text) for text in ("x", " x", "\n\n x"))
    assert not matches(lark, body, " " * 9 + "x") and not matches(lark, body, "\tx")
    assert json.dumps("x") in body
