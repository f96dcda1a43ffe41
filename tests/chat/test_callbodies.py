"""Bodies of calls as models write them, right and slightly wrong; values get the types of the schema."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftd.chat.callbodies import Body, parse_body, typed_value
from ftd.chat.literals import Literals

SCHEMAS = {
    "f": {
        "type": "object",
        "properties": {
            "s": {"type": "string"},
            "n": {"type": "number"},
            "b": {"type": "boolean"},
            "o": {"type": "object"},
            "u": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
    },
    "g": {},
}
CODE = "const a = {\n  b: `${c}`,\n\td: '\\n',\n};\n" * 15


def arguments(kind: Body, text: str, is_whole: bool = True) -> list[tuple[str, dict[str, Any]]]:
    return [(call.name, call.arguments) for call in parse_body(kind, text, SCHEMAS, is_whole=is_whole)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"name":"f","arguments":{"s":"a"}}]', {"s": "a"}),  # TOOL-4: a stray bracket
        (f'{{"name":"f","arguments":{{"s":"{"x" * 3}\n{"y" * 3}"}}}}', {"s": "xxx\nyyy"}),  # bare line ends
        ('{"name":"f","arguments":{"s":"a",}}', {"s": "a"}),
        ('{"name":"f","arguments":{"s":"a"}', {"s": "a"}),  # brackets forgotten
        ('{"name":"f","arguments":{"s":"C:\\dir"}}', {"s": "C:\\dir"}),  # an escape that JSON has not
        (
            "{'name': 'f', 'arguments': {'s': 'it\\'s', 'b': True, 'u': None}}",
            {"s": "it's", "b": True, "u": None},
        ),
        ('{"name":"f","arguments":"{\\"n\\": 2}"}', {"n": 2}),
        ('{"name":"f","parameters":null}', {}),
    ],
)
def test_slightly_wrong_json_is_still_a_call(text: str, expected: dict[str, Any]) -> None:
    assert arguments("json", text) == [("f", expected)]


def test_a_whole_file_of_code_as_an_argument() -> None:
    """TOOL-4: with its line ends escaped, and as models often leave them."""
    right = json.dumps({"name": "f", "arguments": {"s": CODE}})
    assert arguments("json", right) == [("f", {"s": CODE})]
    assert arguments("json", right.replace("\\n", "\n"))[0][1]["s"].count("const") == 15
    xml = f"<function=f>\n<parameter=s>\n{CODE}\n</parameter>\n</function>"
    assert arguments("xml", xml) == [("f", {"s": CODE})]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("json", '{"name":"f","arguments":{"s":"a"}'),
        ("json", '{"name":"f","arguments":{"s":"a'),
        ("xml", "<function=f><parameter=s>a</parameter>"),
        ("pairs", "f<arg_key>s</arg_key><arg_value>a"),
        ("named", 'f{"s":"a"'),
        ("python", '[f(s="a"'),
        ("gemma", 'call:f{s:<|"|>a'),
    ],
)
def test_what_was_cut_off_is_no_call(kind: Body, text: str) -> None:
    """An answer that ended at its limit must not write half of a file."""
    assert arguments(kind, text, is_whole=False) == []


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("007", {"type": "string"}, "007"),
        ("3", {"type": "integer"}, 3),
        ("3", {}, 3),
        ("True", {"type": "boolean"}, True),
        ("None", {"type": "array"}, None),
        ("null", {"type": ["string", "null"]}, None),
        ("null", {"anyOf": [{"type": "string"}, {"type": "null"}]}, None),
        ("[1, 2]", {"type": "array"}, [1, 2]),
        ("['a', True]", {"type": "array"}, ["a", True]),
        ("{not json", {"type": "object"}, "{not json"),
        ("north", {"enum": ["north", "south"]}, "north"),
        ("1", {"enum": ["1", "2"]}, "1"),
        ("free text", None, "free text"),
    ],
)
def test_bare_values_have_the_declared_type(text: str, schema: Any, value: Any) -> None:
    assert typed_value(text, schema) == value


@pytest.mark.parametrize(
    "text", ["", "{", "]", "f(", "[f(a=)]", "[f(a)]", "call:", "1", "nothing", "<function=>"]
)
@pytest.mark.parametrize("kind", ["json", "named", "xml", "pairs", "python", "gemma"])
def test_what_is_no_call_gives_none(kind: Body, text: str) -> None:
    assert kind == "pairs" or arguments(kind, text) == []


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(json_values)
def test_literals_read_json_as_json(value: Any) -> None:
    """Against the json module; and Python's repr of the same against the value itself."""
    assert Literals(json.dumps(value)).value() == value
    surrogates = any(0xD800 <= ord(char) < 0xE000 for char in repr(value))
    if not surrogates and "\\x" not in repr(value) and "\\U" not in repr(value):
        assert Literals(repr(value)).value() == value


@given(st.text(alphabet="{}[](),:='\"\\ab1.-<|> \n", max_size=40))
def test_literals_read_anything_or_say_no(text: str) -> None:
    reader = Literals(text)
    try:
        reader.value()
    except ValueError:
        return
    assert 0 < reader.position <= len(text)


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(ValueError, match="deeply"):
        Literals("[" * 1000).value()
