"""Which objects take properties that are not listed, asked of the grammars."""

import pytest
from grammar_texts import takes

ONE = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TWO = {"properties": {"b": {"type": "integer"}}, "required": ["b"]}
ONLY_A, BOTH, MORE = '{"a":1}', '{"a":1,"b":2}', '{"a":1,"b":2,"c":3}'


def test_object_that_lists_properties_takes_no_others():
    assert takes(ONE, ONLY_A)
    assert not takes(ONE, BOTH)


def test_objects_within_are_closed_too():
    nested = {
        "type": "object",
        "$defs": {"One": ONE},
        "properties": {
            "list": {"type": "array", "items": {"$ref": "#/$defs/One"}},
            "maybe": {"anyOf": [ONE, {"type": "null"}]},
            "all": {"allOf": [{"$ref": "#/$defs/One"}], "title": "One"},
        },
    }
    assert takes(nested, f'{{"list":[{ONLY_A}],"maybe":{ONLY_A},"all":{ONLY_A}}}')
    assert not takes(nested, f'{{"list":[{BOTH}]}}')
    assert not takes(nested, f'{{"maybe":{BOTH}}}')
    assert not takes(nested, f'{{"all":{BOTH}}}')


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {**ONE, "additionalProperties": True},
        {**ONE, "additionalProperties": {"type": "integer"}},
        {**ONE, "required": ["a", "b"]},
        {**ONE, "minProperties": 2},
    ],
)
def test_object_that_needs_or_allows_others_takes_them(schema):
    assert takes(schema, MORE)


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [ONE, TWO]},
        {**ONE, "allOf": [TWO]},
        {**ONE, "anyOf": [TWO, {"type": "null"}]},
        {"$defs": {"Two": TWO}, **ONE, "$ref": "#/$defs/Two"},
        {"$defs": {"Two": {"anyOf": [TWO]}}, "allOf": [ONE, {"$ref": "#/$defs/Two"}]},
    ],
)
def test_parts_that_describe_one_object_together_are_left_open(schema):
    assert takes(schema, BOTH)
