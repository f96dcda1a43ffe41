"""Schemas become grammars of llguidance; what no automaton matches is left out and said."""

import json
import logging

import pytest
from llguidance import LLMatcher

from ftd.chat.schema_compiler import compiled

LOOK_AROUND, DIGITS = "(?=a)b", "[0-9]+"


def test_a_grammar_carries_the_schema_that_it_enforces() -> None:
    found = compiled(json.dumps({"type": "string", "pattern": DIGITS}))
    assert not LLMatcher.validate_grammar(found.grammar)
    assert json.loads(found.schema) == {"type": "string", "pattern": DIGITS}
    assert json.loads(found.grammar)["grammars"][0]["json_schema"]["pattern"] == DIGITS


def test_a_pattern_without_an_automaton_is_left_out_wherever_it_stands(
    caplog: pytest.LogCaptureFixture,
) -> None:
    deep = {"anyOf": [{"items": {"type": "string", "pattern": LOOK_AROUND}, "type": "array"}]}
    schema = {"type": "object", "properties": {"a": deep, "pattern": {"type": "string", "pattern": DIGITS}}}
    with caplog.at_level(logging.WARNING):
        found = json.loads(compiled(json.dumps(schema)).schema)
    assert found["properties"]["a"] == {"anyOf": [{"items": {"type": "string"}, "type": "array"}]}
    assert found["properties"]["pattern"] == {"type": "string", "pattern": DIGITS}
    assert [LOOK_AROUND in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "strin"}, "strin"),
        ({"type": "string", "pattern": "("}, "#/pattern: .* is no regular expression"),
        ({"$ref": "#/nowhere"}, "nowhere"),
    ],
)
def test_what_is_no_schema_has_a_reason_of_one_line(schema: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        compiled(json.dumps(schema))
    assert "\n" not in str(caught.value)
