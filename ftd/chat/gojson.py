"""JSON as Go's encoder writes it: compact, keys sorted on demand, ``<`` ``>`` ``&`` U+2028 U+2029 escaped.

Layers are named by the hash of these bytes, and Go templates print lists of tools with them.
"""

import json
import math
from typing import Any

_ESCAPES = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"} | {
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}


def dumps(value: Any, sort_keys: bool = True) -> str:
    """Return ``value`` as Go would marshal it; whole floats lose their ``.0``. ValueError for NaN."""
    text = json.dumps(
        _numbers(value), ensure_ascii=False, separators=(",", ":"), sort_keys=sort_keys, allow_nan=False
    )
    return text.translate(_ESCAPES)


def _numbers(value: Any) -> Any:
    if isinstance(value, float) and math.isfinite(value) and value.is_integer() and abs(value) < 1e21:
        return int(value)
    if isinstance(value, dict):
        return {str(key): _numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_numbers(item) for item in value]
    return value
