"""Formats to grammars; what a grammar takes is asked of llguidance with a vocabulary of bytes."""

import json
import logging

import pytest
from grammar_texts import takes

from ftd.chat.schema import MAX_SCHEMA_CHARS, grammar_of
from ftd.errors import InvalidOption


def test_json_mode_takes_objects_and_only_them():
    assert takes("json", '{"a":[1,2.5e3,null,true,"\\n"],"b":{}}')
    assert not takes("json", "[1]")
    assert not takes("json", '"a"')
    assert not takes("json", '{"a":1')


def test_empty_schema_takes_any_value():
    for text in ('"a"', "1", "[]", "{}", "null"):
        assert takes({}, text)


def test_schema_is_enforced():
    schema = {
        "title": "Person",
        "$defs": {"Tag": {"enum": ["x", "y"]}},
        "type": "object",
        "properties": {"name": {"type": "string"}, "tag": {"$ref": "#/$defs/Tag"}},
        "required": ["name"],
        "additionalProperties": False,
    }
    assert takes(schema, '{"name":"日本","tag":"y"}')
    assert takes(schema, '{"name":""}')
    assert not takes(schema, '{"name":1}')
    assert not takes(schema, '{"name":"a","tag":"z"}')
    assert not takes(schema, '{"name":"a","other":1}')


@pytest.mark.parametrize(
    ("space", "is_taken"),
    [
        ("", True),
        (" ", True),
        ("\n  ", True),
        ("\n\t\t", True),
        ("  ", False),
        ("\n\n", False),
        ("\n" + " " * 17, False),
    ],
)
def test_white_space_is_bounded(space, is_taken):
    """JSON-1: legal white space without end."""
    assert takes({"type": "object"}, f'{{{space}"a":{space}1{space}}}') is is_taken


def test_nothing_surrounds_an_object():
    for text in (' {"a":1}', '\n{"a":1}', '{"a":1} ', '{"a":1}\n'):
        assert not takes("json", text)


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ("xml", 'invalid format: "xml"; expected "json" or a valid JSON Schema object'),
        ({"type": "thing"}, 'invalid format: #/type: "thing" is no type'),
        ({"properties": []}, "#/properties: must be an object"),
        ({"$ref": "#/$defs/X"}, '#/$ref: "#/$defs/X" does not exist'),
        ({"$ref": "http://127.0.0.1:1/x"}, "is not in this schema"),
        ({"type": "integer", "minimum": 2, "maximum": 1}, "#: no value satisfies it: minimum (2)"),
        ({"type": "string", "pattern": "("}, "unterminated subpattern"),
        ({"enum": ["x" * MAX_SCHEMA_CHARS]}, f"more than {MAX_SCHEMA_CHARS} characters"),
    ],
)
def test_bad_format_is_refused(wanted, reason):
    with pytest.raises(InvalidOption) as caught:
        grammar_of(wanted)
    assert reason in caught.value.message


@pytest.mark.parametrize("depth", [100, 900])
def test_deep_schema_is_refused(depth):
    schema = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    with pytest.raises(InvalidOption, match="too deeply"):
        grammar_of(schema)


def test_what_cannot_be_enforced_is_ignored_with_a_warning(caplog):
    schema = {
        "type": "array",
        "uniqueItems": True,
        "items": {"type": "string", "format": "email", "pattern": r"^(?!\.)a+@b$"},
        "not": {"type": "number"},
    }
    with caplog.at_level(logging.WARNING):
        assert takes(schema, '["a@b.c","a@b.c"]')
    assert not takes(schema, '["nobody"]')
    logged = " ".join(record.getMessage() for record in caplog.records)
    assert "uniqueItems" in logged and "#/items/pattern: ^(?!" in logged


def test_pattern_that_has_an_automaton_is_kept():
    schema = {"type": "string", "pattern": r"^\p{L}{2}[0-9]+$"}
    assert takes(schema, '"äb12"')
    assert not takes(schema, '"a12"')


def test_property_called_pattern_is_no_pattern():
    assert takes({"type": "object", "properties": {"pattern": {"type": "string"}}}, '{"pattern":"("}')


def test_clients_cannot_set_the_librarys_own_options():
    schema = {"type": "object", "x-guidance": {"whitespace_pattern": " *", "item_separator": ".*"}}
    assert not takes(schema, '{"a":   1}')
    assert json.loads(grammar_of(schema))["grammars"][0]["json_schema"]["x-guidance"].keys() == {
        "whitespace_pattern",
        "lenient",
    }
