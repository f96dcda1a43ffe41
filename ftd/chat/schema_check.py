"""Finds what is wrong with a JSON schema, and where, before the library that compiles it is asked.

    {"properties": {"a": {"type": "strin"}}}   ─▶   #/properties/a/type: "strin" is no type

Looked at is what can be reached from the root: definitions that nobody refers to may be anything, and so may
keywords that no grammar enforces. Places are JSON pointers, as in ``$ref``.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any
from urllib.parse import unquote

# Levels of JSON, one in another: what the compiler's own reader takes
MAX_DEPTH = 122
TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_MAPS = ("properties", "patternProperties")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_NUMBERS = ("minimum", "maximum", "multipleOf")
_TEXTS = ("pattern", "format", "$ref")
_KNOWN = frozenset(
    (
        *(*_MAPS, *_LISTS, *_COUNTS, *_NUMBERS, *_TEXTS, "type", "enum", "const", "required", "items"),
        *("additionalProperties", "additionalItems", "exclusiveMinimum", "exclusiveMaximum", "nullable"),
        *("not", "if", "then", "else", "contains", "propertyNames", "uniqueItems", "dependentRequired"),
        *("dependentSchemas", "dependencies", "unevaluatedProperties", "unevaluatedItems", "minContains"),
        *("maxContains", "contentEncoding", "contentMediaType", "contentSchema", "$dynamicRef"),
        *("$schema", "$id", "$anchor", "$defs", "$comment", "$vocabulary", "$dynamicAnchor", "definitions"),
        *("id", "title", "description", "default", "examples", "example", "deprecated", "readOnly"),
        *("writeOnly", "x-guidance"),
    )
)
_MIN_INTEGER, _MAX_INTEGER = -(2**63), 2**64 - 1


class BadSchema(ValueError):
    """What is wrong with a schema, behind the place of it; ``hint`` says what would be right."""

    def __init__(self, place: str, problem: str, hint: str = "") -> None:
        super().__init__(f"{place[:200]}: {problem}")
        self.hint = hint


class SchemaCheck:
    """One schema under examination; ``found`` are its reachable parts by place. Counts become integers."""

    def __init__(self, schema: Any, is_enforceable: Callable[[str], bool]) -> None:
        """``is_enforceable`` says of a pattern whether there is an automaton for it."""
        self._root = schema
        self._is_enforceable = is_enforceable
        self._targets: dict[str, str] = {}  # places of a $ref -> what it refers to
        self.found: dict[str, Any] = {}
        self.ignored: list[str] = []

    def run(self) -> None:
        """Raise BadSchema for the first fault; drop patterns without an automaton, and list them."""
        self._check_json()
        if isinstance(self._root, dict) and self._root and not self._root.keys() & _KNOWN:
            names = ", ".join(list(self._root)[:3])
            raise BadSchema("#", f"no keyword of JSON Schema: {names:.100}", "say its type and properties")
        pending = ["#"]
        while pending:
            place = pending.pop()
            if place in self.found:
                continue
            part = self.found[place] = self._at(place)
            if isinstance(part, dict):
                self._check(place, part)
                pending += reversed(self.inner(place))
            elif not isinstance(part, bool):
                raise BadSchema(place, f"a schema must be an object or a boolean, not {_shown(part)}")
        self._check_ends()

    def inner(self, place: str) -> list[str]:
        """Return the places of the parts of a part, and of what it refers to."""
        places = list(_children(place, self.found[place]))
        return [*places, self._targets[place]] if place in self._targets else places

    def merged(self, place: str) -> list[str]:
        """Return the places of the parts that describe the same value as a part."""
        part = self.found[place]
        if not isinstance(part, dict):
            return []
        lists = ("allOf", "anyOf", "oneOf")
        places = [f"{place}/{key}/{idx}" for key in lists for idx in range(len(part.get(key, ())))]
        return [*places, self._targets[place]] if place in self._targets else places

    def _check_json(self) -> None:
        pending: list[tuple[str, Any, int]] = [("#", self._root, 0)]
        while pending:
            place, value, depth = pending.pop()
            if depth > MAX_DEPTH:
                raise BadSchema(place, f"nested too deeply, more than {MAX_DEPTH} levels")
            if isinstance(value, dict):
                pending += [(f"{place}/{_escaped(key)}", item, depth + 1) for key, item in value.items()]
            elif isinstance(value, list):
                pending += [(f"{place}/{idx}", item, depth + 1) for idx, item in enumerate(value)]
            elif isinstance(value, int) and not _MIN_INTEGER <= value <= _MAX_INTEGER:
                raise BadSchema(place, f"{_shown(value)} is too large an integer")

    def _at(self, place: str) -> Any:
        value = self._root
        for step in place.split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            value = value[int(key)] if isinstance(value, list) else value[key]
        return value

    def _check(self, place: str, part: dict[str, Any]) -> None:
        for key in _MAPS:
            self._want(place, part, key, dict, "an object whose values are schemas")
        for key in _LISTS:
            self._want(place, part, key, list, "an array of schemas")
            if part.get(key) == [] and key != "prefixItems":
                raise BadSchema(f"{place}/{key}", "must not be empty")
        for key in _TEXTS:
            self._want(place, part, key, str, "a string")
        for key in _NUMBERS:
            value = part.get(key, 1)
            if type(value) not in (int, float) or (key == "multipleOf" and value <= 0):
                wanted = "a number above 0" if key == "multipleOf" else "a number"
                raise BadSchema(f"{place}/{key}", f"must be {wanted}, not {_shown(value)}")
        for key in _COUNTS:
            self._count(place, part, key)
        self._check_type(place, part)
        self._want(place, part, "enum", list, "an array of values")
        if part.get("enum") == []:
            raise BadSchema(f"{place}/enum", "must not be empty")
        # A boolean is how drafts before the fourth said it, beside a property
        if not isinstance(part.get("required"), bool):
            self._want(place, part, "required", list, "an array of names")
            for idx, name in enumerate(part.get("required", ())):
                if not isinstance(name, str):
                    raise BadSchema(f"{place}/required/{idx}", f"must be a string, not {_shown(name)}")
        self._check_patterns(place, part)
        if "$ref" in part and (target := self._target(place, part["$ref"])):
            self._targets[place] = target

    @staticmethod
    def _want(place: str, part: dict[str, Any], key: str, kind: type, wanted: str) -> None:
        if key in part and not isinstance(part[key], kind):
            raise BadSchema(f"{place}/{key}", f"must be {wanted}, not {_shown(part[key])}")

    @staticmethod
    def _count(place: str, part: dict[str, Any], key: str) -> None:
        value = part.get(key, 0)
        if isinstance(value, float) and value.is_integer():
            value = part[key] = int(value)
        if type(value) is not int or value < 0:
            raise BadSchema(f"{place}/{key}", f"must be an integer of 0 or more, not {_shown(value)}")

    @staticmethod
    def _check_type(place: str, part: dict[str, Any]) -> None:
        if "type" not in part:
            return
        kinds = part["type"] if isinstance(part["type"], list) else [part["type"]]
        hint = f"the types are {', '.join(TYPES)}"
        if not kinds:
            raise BadSchema(f"{place}/type", "must not be empty", hint)
        for kind in kinds:
            if kind not in TYPES:
                raise BadSchema(f"{place}/type", f"{_shown(kind)} is no type", hint)

    def _check_patterns(self, place: str, part: dict[str, Any]) -> None:
        for pattern in part.get("patternProperties", ()):
            where = f"{place}/patternProperties/{_escaped(pattern)}"
            if not self._is_enforceable(pattern):
                _check_regex(where, pattern)
                raise BadSchema(where, "no grammar can enforce this pattern", "leave look-around out")
        pattern = part.get("pattern")
        if pattern is not None and not self._is_enforceable(pattern):
            _check_regex(f"{place}/pattern", pattern)
            del part["pattern"]
            self.ignored.append(f"{place}/pattern: {pattern}")

    def _target(self, place: str, ref: str) -> str:
        """Return the place that a reference leads to, empty if the library has to find it."""
        base, _, pointer = ref.partition("#")
        # Anchors, and identifiers within a schema, have rules of their own, which the library knows
        if base or (pointer and not pointer.startswith("/")):
            if self._names_parts:
                return ""
            raise BadSchema(f"{place}/$ref", f"{_shown(ref)} is not in this schema", "put it under $defs")
        target = "#" + unquote(pointer)
        try:
            self._at(target)
        except (KeyError, IndexError, ValueError, TypeError):
            if self._names_parts:
                return ""
            raise BadSchema(f"{place}/$ref", f"{_shown(ref)} does not exist", "put it under $defs") from None
        return target

    @cached_property
    def _names_parts(self) -> bool:
        text = json.dumps(self._root)
        return '"$id"' in text or '"$anchor"' in text

    def _check_ends(self) -> None:
        """Refuse a part every value of which would hold another value of it, without end."""
        # Endless until shown otherwise: what refers to nothing ends, then what refers to that, and so on
        endless = {place for place, part in self.found.items() if part is not True}
        num_before = -1
        while num_before != len(endless):
            num_before = len(endless)
            for place in reversed(self.found):  # parts come behind what they are part of
                if place in endless and self._ends(place, endless):
                    endless.remove(place)
        if circle := self._circle(endless):
            place = next(place for place in circle if self._targets.get(place) in circle)
            problem = f"$ref {_shown(self.found[place]['$ref'])} leads back here, so that no value has an end"
            raise BadSchema(place, problem, "make it optional, or allow null beside it")

    def _circle(self, places: set[str]) -> list[str]:
        """Return places that each have the next one as a part, and the last the first; empty if none do."""
        done = set[str]()
        for first in filter(places.__contains__, self.found):
            path, left = dict.fromkeys([first]), [self._within(first, places)]
            while left:
                inner = next(left[-1], None)
                if inner is None:
                    left.pop()
                    done.add(path.popitem()[0])
                elif inner in path:
                    circle = list(path)
                    return circle[circle.index(inner) :]
                elif inner not in done:
                    path[inner] = None
                    left.append(self._within(inner, places))
        return []

    def _within(self, place: str, places: set[str]) -> Iterator[str]:
        parts = self.inner(place) if isinstance(self.found[place], dict) else ()
        return filter(places.__contains__, parts)

    def _ends(self, place: str, endless: set[str]) -> bool:
        part = self.found[place]
        if part is False:
            return False
        if self._targets.get(place) in endless:
            return False
        if any(f"{place}/allOf/{idx}" in endless for idx in range(len(part.get("allOf", ())))):
            return False
        for key in ("anyOf", "oneOf"):
            options = [f"{place}/{key}/{idx}" for idx in range(len(part.get(key, ())))]
            if options and all(option in endless for option in options):
                return False
        if part.get("type", "object") == "object" and isinstance(part.get("required"), list):
            needed = (f"{place}/properties/{_escaped(name)}" for name in part["required"])
            if any(name in endless for name in needed):
                return False
        return not (
            part.get("type") == "array" and part.get("minItems", 0) > 0 and f"{place}/items" in endless
        )


def _children(place: str, part: Mapping[str, Any]) -> Iterator[str]:
    for key in _MAPS:
        yield from (f"{place}/{key}/{_escaped(name)}" for name in part.get(key, ()))
    for key in _LISTS:
        yield from (f"{place}/{key}/{idx}" for idx in range(len(part.get(key, ()))))
    items = part.get("items")
    if isinstance(items, list):
        yield from (f"{place}/items/{idx}" for idx in range(len(items)))
    for key in ("items", "additionalProperties", "additionalItems"):
        if key in part and not (key == "items" and isinstance(items, list)):
            yield f"{place}/{key}"


def _check_regex(place: str, pattern: str) -> None:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as exc:
        raise BadSchema(place, f"{_shown(pattern)} is no regular expression: {exc}") from exc


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:60]}…"
