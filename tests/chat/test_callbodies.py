"""Bodies of calls as models write them, right and slightly wrong; values get the types of the schema."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftd.api import jsontext
from ftd.chat.callbodies import Body, parse_body, typed_value

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
        ("NaN", {"type": "number"}, "NaN"),
        ("-Infinity", {}, "-Infinity"),
        ("1e999", {"type": "number"}, "1e999"),
        (" null ", {}, None),
        ("9" * 5000, {"type": "integer"}, "9" * 5000),  # more digits than Python converts
        ('"a\nb"', {"type": "object"}, "a\nb"),
    ],
)
def test_bare_values_have_the_declared_type(text: str, schema: Any, value: Any) -> None:
    assert typed_value(text, schema) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("json", '{"name":"f","arguments":{"n":NaN,"o":[Infinity,-Infinity,1e999,-1e999]}}'),
        ("json", '{"name":"f","arguments":"{\\"n\\":NaN,\\"o\\":[Infinity,1e999,1e999,1e999]}"}'),
        ("json", "{'name':'f','arguments':{'n':1e999,'o':[1e999,1e999,-1e999,1e999]}}"),
        ("named", 'f{"n":NaN,"o":[1e999,1e999,1e999,1e999]}'),
        ("python", "[f(n=1e999, o=[1e999, -1e999, 1e9999, 1e999])]"),
        ("gemma", "call:f{n:1e999,o:[1e999,1e999,1e999,1e999]}"),
        ("xml", '<function=f>{"n":NaN,"o":[NaN,NaN,NaN,NaN]}</function>'),
    ],
)
def test_numbers_that_no_json_may_hold_are_null(kind: Body, text: str) -> None:
    """As JavaScript writes them: an answer that held NaN could not be sent at all."""
    (call,) = parse_body(kind, text, SCHEMAS)
    assert call.arguments == {"n": None, "o": [None] * 4}
    assert json.loads(jsontext.encode(call.arguments)) == call.arguments


@given(
    st.sampled_from(("1", "null", "NaN", "x", "[1]", "1e999")),
    st.dictionaries(
        st.sampled_from(("type", "anyOf", "oneOf", "enum", "properties")),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.sampled_from(("string", "number", "null", "x")),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.sampled_from(("type", "enum")), inner, max_size=2)
            ),
            max_leaves=6,
        ),
    ),
)
def test_schemas_that_are_none_say_nothing(text: str, schema: dict[str, Any]) -> None:
    """Clients declare what they like; a value is then what it looks like, and can always be sent."""
    value = typed_value(text, schema)
    assert value == text or value in (1, None, [1])
    jsontext.encode(value)


@pytest.mark.parametrize(
    "text", ["", "{", "]", "f(", "[f(a=)]", "[f(a)]", "call:", "1", "nothing", "<function=>"]
)
@pytest.mark.parametrize("kind", ["json", "named", "xml", "pairs", "python", "gemma"])
def test_what_is_no_call_gives_none(kind: Body, text: str) -> None:
    assert kind == "pairs" or arguments(kind, text) == []
