"""Values as models write them: JSON against the json module, Python's against ``ast``, and what is none."""

import ast
import json
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftd.chat.literals import MAX_DEPTH, Literals, finite

# Without halves of characters, which JSON texts may hold and a decoder of UTF-16 replaces
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@given(json_values)
def test_json_is_read_as_json(value: Any) -> None:
    assert Literals(json.dumps(value)).value() == value
    assert Literals(json.dumps(value, ensure_ascii=False, indent=1)).value() == value


@given(json_values)
def test_what_python_writes_is_read_as_python_reads_it(value: Any) -> None:
    text = repr(value)
    if "\\x" not in text and "\\U" not in text:  # escapes that JSON has not
        assert Literals(text).value() == ast.literal_eval(text) == value


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_are_read_to_the_last_bit(value: float) -> None:
    found = Literals(json.dumps(value)).value()
    assert found == value and type(found) is float


@given(json_values, json_values)
def test_values_follow_each_other(first: Any, second: Any) -> None:
    text = f"  {json.dumps(first)} , {json.dumps(second)} rest"
    reader = Literals(text)
    assert reader.value() == first
    assert reader.take(",") and not reader.take(",")
    assert reader.value() == second
    assert reader.peek() == "r" and text[reader.position :] == "rest"


@given(st.text(alphabet="{}[](),:='\"\\ab1.-<|> \n", max_size=40))
def test_anything_is_read_or_refused(text: str) -> None:
    reader = Literals(text)
    try:
        reader.value()
    except ValueError:
        return
    assert 0 < reader.position <= len(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{city:<|"|>Oslo, it\'s {<|"|>,days:3,}', {"city": "Oslo, it's {", "days": 3}),
        ('{a-b.c: 1, <|"|>d e<|"|>: [true,]}', {"a-b.c": 1, "d e": [True]}),
        (r"'it\'s \q \/ A \ud83d\ude00'", "it's \\q / A \U0001f600"),
        (r"'\ud83d alone'", "\ufffd alone"),
        ('"two\nlines"', "two\nlines"),
        ("[0, -0, 10, -1.5e3, 2E-2]", [0, 0, 10, -1500.0, 0.02]),
        ("[1e400, -1e9999]", [None, None]),
        ("{1: 2}", {"1": 2}),
    ],
)
def test_other_ways_of_writing_values(text: str, value: Any) -> None:
    reader = Literals(text)
    assert reader.value() == value
    assert reader.peek() == ""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no name"),
        ("maybe", "no value: maybe"),
        ("01", "no name"),
        ("1.2.3", "no name"),
        ("1st", "no name"),
        ("9" * 402, "no name"),
        ("'open", "string without an end"),
        ("'escaped\\'", "string without an end"),
        ('<|"|>open<|"', "string without an end"),
        ("{a}", "key without a value"),
        ("{:1}", "no key"),
        ("{a:1 b:2}", "no comma in an object"),
        ("{'a':1", "no comma in an object"),
        ("[1 2]", "no comma in a list"),
        ("[1", "no comma in a list"),
        ("[,]", "no name"),
    ],
)
def test_what_is_no_value_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Literals(text).value()


@pytest.mark.parametrize(
    ("text", "found", "rest"),
    [
        (")", {}, ""),
        (" ) after", {}, " after"),
        ("a=1, b='x)',)", {"a": 1, "b": "x)"}, ""),
        ("a = [f, ]", ValueError("no value: f"), ""),
        ("a", ValueError("argument without a value"), ""),
        ("a=1 b=2)", ValueError("no comma between arguments"), ""),
        ("a=1", ValueError("no comma between arguments"), ""),
        ("'a'=1)", ValueError("no name"), ""),
    ],
)
def test_arguments_of_a_call(text: str, found: dict[str, Any] | ValueError, rest: str) -> None:
    reader = Literals(text)
    if isinstance(found, ValueError):
        with pytest.raises(ValueError, match=str(found)):
            reader.keywords()
    else:
        assert reader.keywords() == found and text[reader.position :] == rest


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ("{a:", "}")])
def test_nesting_has_a_bottom(opening: str, closing: str) -> None:
    deepest = opening * MAX_DEPTH + "1" + closing * MAX_DEPTH
    assert json.dumps(Literals(deepest).value()).count("1") == 1
    with pytest.raises(ValueError, match="nested too deeply"):
        Literals(opening + deepest + closing).value()
    with pytest.raises(ValueError, match="nested too deeply"):
        Literals(opening * 100_000).value()


@pytest.mark.parametrize("piece", ["\\", "\\\\", "'", "a ", "<|", "\\u12", "0", "{"])
def test_long_texts_take_linear_time(piece: str) -> None:
    started = time.process_time()
    for opening in ("'", "[", "{", '<|"|>', ""):
        with suppress(ValueError):  # no closing mark comes, but '' is a value
            Literals(opening + piece * 200_000 + "\x00").value()
    assert time.process_time() - started < 2


def test_numbers_beyond_all_floats_are_none() -> None:
    assert finite("1e308") == 1e308 and finite("-1e309") is None and finite("1e-400") == 0.0
