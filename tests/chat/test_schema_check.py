"""What is wrong with a schema is said with its place; what passes can be followed by the engine's library."""

import random
from typing import Any

import pytest
from examples import examples
from llguidance import LLTokenizer

from ftd.chat.schema import grammar_of
from ftd.chat.schema_check import MAX_DEPTH, BadSchema, SchemaCheck
from ftd.engine.grammar_library import new_matcher, tokenizer_of
from ftd.engine.messages import Vocabulary
from ftd.errors import InvalidOption

END = 256
LONG = "x" * 100


def fault(schema: Any) -> str:
    with pytest.raises(InvalidOption) as caught:
        grammar_of(schema)
    return caught.value.message.removeprefix("invalid format: ")


def within(schema: Any) -> dict[str, Any]:
    """A schema of which another one is a part that every value has."""
    return {"type": "object", "properties": {"a/b": {"items": schema, "type": "array"}}, "required": ["a/b"]}


@pytest.mark.parametrize(
    ("part", "place", "problem"),
    [
        ("string", "", 'a schema must be an object or a boolean, not "string"'),
        (None, "", "a schema must be an object or a boolean, not null"),
        ({"type": "strin"}, "/type", '"strin" is no type'),
        ({"type": "OBJECT"}, "/type", '"OBJECT" is no type'),
        ({"type": None}, "/type", "null is no type"),
        ({"type": ["string", "nul"]}, "/type", '"nul" is no type'),
        ({"type": []}, "/type", "must not be empty"),
        ({"properties": [{"name": "a"}]}, "/properties", "must be an object whose values are schemas"),
        ({"properties": {"a": "string"}}, "/properties/a", "a schema must be an object or a boolean"),
        ({"required": "a"}, "/required", 'must be an array of names, not "a"'),
        ({"required": ["a", 1]}, "/required/1", "must be a string, not 1"),
        ({"items": "string"}, "/items", "a schema must be an object or a boolean"),
        ({"items": [{}, 1]}, "/items/1", "a schema must be an object or a boolean"),
        ({"additionalProperties": LONG}, "/additionalProperties", f'not "{LONG[:59]}…'),
        ({"enum": []}, "/enum", "must not be empty"),
        ({"enum": "a"}, "/enum", "must be an array of values"),
        ({"anyOf": []}, "/anyOf", "must not be empty"),
        ({"anyOf": {"type": "string"}}, "/anyOf", "must be an array of schemas"),
        ({"allOf": [{}, "string"]}, "/allOf/1", "a schema must be an object or a boolean"),
        ({"minimum": "2"}, "/minimum", 'must be a number, not "2"'),
        ({"minimum": 10**30}, "/minimum", "is too large an integer"),
        ({"multipleOf": 0}, "/multipleOf", "must be a number above 0"),
        ({"maxLength": -1}, "/maxLength", "must be an integer of 0 or more, not -1"),
        ({"minItems": 1.5}, "/minItems", "must be an integer of 0 or more, not 1.5"),
        ({"pattern": "("}, "/pattern", '"(" is no regular expression: missing )'),
        ({"pattern": 5}, "/pattern", "must be a string"),
        ({"patternProperties": {"(": {}}}, "/patternProperties/(", "is no regular expression"),
        ({"patternProperties": {"(?=a)": {}}}, "/patternProperties/(?=a)", "no grammar can enforce this"),
        ({"$ref": 5}, "/$ref", "must be a string, not 5"),
        ({"$ref": "#/$defs/X"}, "/$ref", '"#/$defs/X" does not exist'),
        ({"$ref": "#/properties/a~1b/items/0"}, "/$ref", "does not exist"),
        ({"$ref": "http://127.0.0.1:1/x"}, "/$ref", "is not in this schema"),
        ({"$ref": "#anchor"}, "/$ref", "is not in this schema"),
    ],
)
def test_a_fault_has_a_place(part: Any, place: str, problem: str) -> None:
    said = fault(within(part))
    assert said.startswith(f"#/properties/a~1b/items{place}: ") and problem in said


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        ({"type": "integer", "minimum": 2, "maximum": 1}, "no value satisfies it: minimum (2)"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "its types exclude each other"),
        ({"type": "string", "pattern": "^a", "format": "date"}, "no text satisfies all"),
        ({"type": "number", "minimum": 1e300}, "the limits of this number cannot be enforced"),
        ({"type": "number", "multipleOf": 0.000123457}, "multipleOf has too many digits"),
    ],
)
def test_what_the_library_refuses_has_a_place_too(part: Any, problem: str) -> None:
    ok = {"type": "object", "properties": {"x": {"type": "string"}}}
    empty = {"type": "integer", "minimum": 2, "maximum": 1}  # no fault where it may be left out
    schema = {
        "type": "object",
        "properties": {"ok": ok, "also": empty, "bad": {"$ref": "#/$defs/B"}},
        "required": ["ok", "bad"],
        "$defs": {"B": {"type": "object", "properties": {"v": part, "w": ok}, "required": ["v", "w"]}},
    }
    said = fault(schema)
    assert said.startswith("#/$defs/B/properties/v: ") and problem in said


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"$ref": "#"}, "#"),
        ({"allOf": [{"$ref": "#"}]}, "#/allOf/0"),
        ({"anyOf": [{"$ref": "#"}, False]}, "#/anyOf/0"),
        (
            {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}},
            "#/$defs/A",
        ),
        ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "#/items"),
        (
            {
                "type": "object",
                "properties": {"a": {"$ref": "#/$defs/L"}},
                "$defs": {"L": {"$ref": "#/$defs/L"}},
            },
            "#/$defs/L",
        ),
    ],
)
def test_a_value_without_end_is_refused(schema: dict[str, Any], place: str) -> None:
    said = fault(schema)
    assert said.startswith(f"{place}: $ref ") and "leads back here" in said


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"child": {"$ref": "#"}}},
        {"anyOf": [{"$ref": "#"}, {"type": "string"}]},
        {"type": "array", "items": {"$ref": "#"}},
        {"$ref": "#/$defs/a~1b%25", "$defs": {"a/b%": {"type": "null"}}},
        {"$ref": "#here", "$defs": {"A": {"$anchor": "here", "type": "null"}}},
        {"$id": "http://x.y/root", "$ref": "item", "$defs": {"A": {"$id": "item", "type": "null"}}},
        {"$schema": "http://x.y/dialect", "type": "null"},
        {"type": "string", "maxLength": 10.0},
        {"type": "object", "properties": {"a": {"type": "string", "required": True}}},
        {"type": "object", "$defs": {"unused": {"type": "strin"}}, "not": 5, "default": 5},
        {"const": {"pattern": "("}},
    ],
)
def test_what_is_unusual_but_right_compiles(schema: dict[str, Any]) -> None:
    assert grammar_of(schema)


def test_what_is_no_schema_at_all_is_refused() -> None:
    """An example of the answer, or a schema in OpenAI's wrapping, would leave every answer free."""
    assert fault({"name": "string", "age": "number"}) == "#: no keyword of JSON Schema: name, age"
    assert fault({"name": "n", "schema": {"type": "object"}}).startswith("#: no keyword")


def test_the_place_of_something_deep_is_cut() -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH + 1):
        value = [value]
    with pytest.raises(BadSchema, match="nested too deeply") as caught:
        SchemaCheck({"const": value}, lambda pattern: True).run()
    assert len(str(caught.value)) < 300


def test_a_long_chain_of_references_is_followed() -> None:
    chain: dict[str, Any] = {f"D{i}": {"$ref": f"#/$defs/D{i + 1}"} for i in range(1000)}
    SchemaCheck({"$ref": "#/$defs/D0", "$defs": {**chain, "D1000": True}}, lambda pattern: True).run()
    with pytest.raises(BadSchema, match="leads back here"):
        circle = {"$ref": "#/$defs/D0", "$defs": {**chain, "D1000": {"$ref": "#/$defs/D500"}}}
        SchemaCheck(circle, lambda pattern: True).run()


@pytest.fixture(scope="module")
def tokenizer() -> LLTokenizer:
    tokens = [*(bytes([byte]) for byte in range(256)), b"<end>"]
    return tokenizer_of(Vocabulary(tokens=tokens, special_ids=[END], eos_ids=[END]))


def _random_schema(source: random.Random, depth: int) -> Any:
    kinds = ("ref", "ref", "type", "bool", "object", "object", "array", "anyOf", "allOf", "oneOf")
    kind = source.choice(kinds if depth else kinds[:4])
    if kind == "ref":
        return {"$ref": source.choice(["#", "#/$defs/A", "#/$defs/B", "#/properties/a"])}
    if kind == "bool":
        return source.random() < 0.8
    if kind == "type":
        return {"type": source.choice(["integer", "null", "string"])}
    if kind == "array":
        return {
            "type": "array",
            "items": _random_schema(source, depth - 1),
            "minItems": source.randint(0, 2),
        }
    if kind == "object":
        names = "abc"[: source.randint(0, 3)]
        schema = {"type": "object", "properties": {n: _random_schema(source, depth - 1) for n in names}}
        return schema | {"required": [name for name in "abc" if source.random() < 0.3]}
    return {kind: [_random_schema(source, depth - 1) for _ in range(source.randint(1, 3))]}


def _walk(source: random.Random, tokenizer: LLTokenizer, grammar: str, num_steps: int) -> None:
    matcher = new_matcher(tokenizer, grammar)
    for _ in range(num_steps):
        if matcher.is_stopped():
            return
        mask = matcher.compute_bitmask()
        assert not matcher.is_error(), matcher.get_error()
        choices = [token for token in range(END + 1) if mask[token // 8] >> token % 8 & 1]
        assert choices
        if END in choices:
            return
        assert matcher.consume_token(source.choice(choices))


@pytest.mark.parametrize("seed", range(examples(500)))
def test_what_passes_can_be_followed(tokenizer: LLTokenizer, seed: int) -> None:
    source = random.Random(seed)
    schema: dict[str, Any] = {"type": "object", "properties": {"a": _random_schema(source, 3)}}
    schema |= {
        "required": source.choice([[], ["a"]]),
        "$defs": {"A": _random_schema(source, 2), "B": _random_schema(source, 2)},
    }
    try:
        grammar = grammar_of(schema)
    except InvalidOption as exc:
        assert exc.message.startswith("invalid format: #")
        return
    _walk(source, tokenizer, grammar, 40)
