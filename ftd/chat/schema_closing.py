"""Closes the objects of a JSON schema that list their properties and say nothing of others.

By JSON Schema any other property may stand beside those listed, and a small model that may go on does: it
writes keys until its window is full. Every value of the closed schema is one of the open one. llama.cpp's own
grammars, which Ollama uses, do the same; ``"additionalProperties": true`` leaves an object open.

    {"properties": {"a": {}}}                      ─▶  only "a"
    {"allOf": [{"properties": …}, {"$ref": …}]}    ─▶  as it is: what one part lists is foreign to the other
"""

from typing import Any

from ftd.chat.schema_check import SchemaCheck

# Keywords whose parts describe the very value that the schema around them describes
_MERGED = ("allOf", "anyOf", "oneOf", "$ref")
_OF_OBJECTS = frozenset(
    ("properties", "patternProperties", "additionalProperties", "required", "minProperties")
)
_OPEN = frozenset(
    (
        *(*_MERGED, "additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames"),
        *("if", "then", "else", "dependentSchemas", "dependencies", "$dynamicRef"),
    )
)


def close(check: SchemaCheck) -> None:
    """Close objects among the parts that ``check`` found, in place."""
    shared = _shared(check)
    for place, part in check.found.items():
        if isinstance(part, dict) and place not in shared and _lists_all(part):
            part["additionalProperties"] = False


def _lists_all(part: dict[str, Any]) -> bool:
    """Whether what a part asks of an object can be had from the properties that it lists."""
    listed, required = part.get("properties"), part.get("required", ())
    if listed is None or part.keys() & _OPEN or part.get("minProperties", 0) > len(listed):
        return False
    return isinstance(required, bool) or set(required) <= listed.keys()


def _shared(check: SchemaCheck) -> set[str]:
    """Return the places of parts that describe an object together with another part."""
    shared: set[str] = set()
    pending = [inner for place in check.found if _adds(check.found[place]) for inner in check.merged(place)]
    while pending:
        place = pending.pop()
        if place not in shared:
            shared.add(place)
            pending += check.merged(place)
    return shared


def _adds(part: Any) -> bool:
    """Whether what a part merges is more than one description of an object."""
    if not isinstance(part, dict):
        return False
    kinds = [key for key in _MERGED if key in part]
    return len(kinds) > 1 or len(part.get("allOf", ())) > 1 or bool(kinds and part.keys() & _OF_OBJECTS)
