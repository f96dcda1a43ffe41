"""The values Go templates compute with, and how Go prints, compares and tests them.

nil, bool, int, float, str, list and dict stand for themselves (a dict is a map, ranged in key order).
``Struct`` has a fixed set of fields and prints as the JSON that it came from; ``JsonMap`` and ``JsonList``
print as JSON too.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ftd.chat import gojson
from ftd.chat.gotemplate.nodes import GoTemplateError


class Missing:
    """The value of a map key that is not there; prints ``<no value>`` and is false."""


MISSING = Missing()


class JsonMap(dict[str, Any]):
    """A map that prints as JSON with sorted keys."""


class JsonList(list[Any]):
    """A list that prints as JSON."""


class TypeList(list[str]):
    """The ``type`` of a schema property: prints bare if there is one."""


@dataclass(frozen=True, slots=True)
class Struct:
    """A value with named fields; ``json`` is what it prints, in this key order."""

    fields: dict[str, Any]
    json: dict[str, Any] = field(default_factory=dict)


def plain(value: Any) -> Any:
    """Return ``value`` as JSON data."""
    if isinstance(value, Struct):
        return plain(value.json)
    if isinstance(value, TypeList) and len(value) == 1:
        return value[0]
    if isinstance(value, JsonMap):
        return {key: plain(value[key]) for key in sorted(value)}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return None if value is MISSING else value


def truth(value: Any) -> bool:
    """Say whether Go takes ``value`` for true."""
    if isinstance(value, Struct):
        return True
    return value is not MISSING and bool(value)


def to_text(value: Any, top: bool = True) -> str:
    """Return ``value`` as Go's ``%v`` prints it; nil at the top is ``<no value>``."""
    if value is MISSING or value is None:
        return "<no value>" if top else "<nil>"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return _float_text(value)
    if isinstance(value, TypeList) and len(value) == 1:
        return value[0]
    if isinstance(value, Struct | JsonMap | JsonList):
        return gojson.dumps(plain(value), sort_keys=False)
    if isinstance(value, dict):
        return f"map[{' '.join(f'{key}:{to_text(value[key], False)}' for key in sorted(value))}]"
    if isinstance(value, list):
        return f"[{' '.join(to_text(item, False) for item in value)}]"
    return str(value)


def _float_text(value: float) -> str:
    """Format as Go's ``%v``: shortest digits, an exponent from 1e21 and below 1e-4."""
    if math.isnan(value) or math.isinf(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    if value == 0 or 1e-4 <= abs(value) < 1e21:
        text = repr(value)
        text = f"{value:f}" if "e" in text else text
        return text.rstrip("0").rstrip(".") if "." in text else text
    mantissa, _, exponent = repr(value).partition("e")
    if not exponent:
        mantissa, _, exponent = f"{value:e}".partition("e")
        mantissa = mantissa.rstrip("0").rstrip(".")
    sign = "-" if exponent.startswith("-") else "+"
    return f"{mantissa.removesuffix('.0')}e{sign}{exponent.lstrip('+-'):>02}"


def kind(value: Any) -> str:
    """Return the name of the kind that Go compares by."""
    for cls, name in (
        (bool, "bool"),
        (int, "int"),
        (float, "float"),
        (str, "string"),
        (list, "slice"),
        (dict, "map"),
        (Struct, "struct"),
    ):
        if isinstance(value, cls):
            return name
    return "nil"


def equal(first: Any, others: Sequence[Any]) -> bool:
    """Return Go's ``eq first others…``: true if any is equal; comparing different kinds is an error."""
    if not others:
        raise GoTemplateError("error calling eq: missing argument for comparison", "failed")
    for other in others:
        kinds = {kind(first), kind(other)}
        if "nil" in kinds:
            if len(kinds) == 1:
                return True
            continue
        if len(kinds) > 1:
            raise GoTemplateError("error calling eq: incompatible types for comparison", "failed")
        if kinds <= {"slice", "map", "struct"}:
            raise GoTemplateError(f"error calling eq: non-comparable type {kinds.pop()}", "failed")
        if first == other:
            return True
    return False


def less(first: Any, second: Any) -> bool:
    """Return Go's ``lt first second``."""
    kinds = {kind(first), kind(second)}
    if len(kinds) > 1:
        raise GoTemplateError("error calling lt: incompatible types for comparison", "failed")
    if not kinds <= {"int", "float", "string"}:
        raise GoTemplateError(f"error calling lt: invalid type for comparison: {kinds.pop()}", "failed")
    return bool(first < second)
