"""The functions a Go template may call: Go's own, and those that Ollama adds."""

import html
import json
import re
import urllib.parse
from collections.abc import Callable
from datetime import date, timedelta
from typing import Any

from ftd.chat import gojson
from ftd.chat.gotemplate.nodes import GoTemplateError
from ftd.chat.gotemplate.values import MISSING, Struct, equal, kind, less, plain, to_text, truth

_VERB = re.compile(r"%(?P<flags>[-+# 0]*)(?P<width>\d*)(?:\.(?P<precision>\d*))?(?P<verb>.)", re.DOTALL)
MAX_WIDTH = 1000
_MISSING_ARGUMENT = "%!{verb}(MISSING)"


def _fail(name: str, message: str) -> GoTemplateError:
    return GoTemplateError(f"error calling {name}: {message}", "failed")


def _len(value: Any) -> int:
    if isinstance(value, str):
        return len(value.encode("utf-8", "replace"))
    if isinstance(value, list | dict):
        return len(value)
    raise _fail("len", f"len of type {kind(value)}")


def _index(value: Any, *keys: Any) -> Any:
    for key in keys:
        if isinstance(value, dict) and isinstance(key, str):
            value = value.get(key, MISSING)
        elif isinstance(value, list | str) and isinstance(key, int) and not isinstance(key, bool):
            items: Any = value.encode("utf-8", "replace") if isinstance(value, str) else value
            if not 0 <= key < len(items):
                raise _fail("index", f"index out of range: {key}")
            value = items[key]
        else:
            raise _fail("index", f"cannot index {kind(value)} with {kind(key)}")
    return value


def _slice(value: Any, *bounds: Any) -> Any:
    if not isinstance(value, list | str) or len(bounds) > 3:
        raise _fail("slice", f"can't slice item of type {kind(value)}")
    items: Any = value.encode("utf-8", "replace") if isinstance(value, str) else value
    limits = [0, len(items)]
    for idx, bound in enumerate(bounds[:2]):
        if isinstance(bound, bool) or not isinstance(bound, int) or not 0 <= bound <= len(items):
            raise _fail("slice", f"index out of range: {bound}")
        limits[idx] = bound
    if limits[0] > limits[1]:
        raise _fail("slice", f"invalid slice index: {limits[0]} > {limits[1]}")
    part = items[limits[0] : limits[1]]
    return part.decode("utf-8", "replace") if isinstance(value, str) else part


def _print(*args: Any) -> str:
    """Join like Go's Sprint: a blank between two operands when neither is a string."""
    parts: list[str] = []
    for idx, arg in enumerate(args):
        if idx and not isinstance(arg, str) and not isinstance(args[idx - 1], str):
            parts.append(" ")
        parts.append(to_text(arg, False))
    return "".join(parts)


def _println(*args: Any) -> str:
    return " ".join(to_text(arg, False) for arg in args) + "\n"


def _quote(text: str) -> str:
    quoted = json.dumps(text, ensure_ascii=False).replace("\x7f", "\\x7f")
    return re.sub(r"\\u00([01][0-9a-f])", r"\\x\1", quoted)


def _verb(verb: str, flags: str, precision: str | None, value: Any) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if verb in "vs":
        text = to_text(value, False)
        return text if precision is None else text[: int(precision or 0)]
    if verb == "q":
        return _quote(to_text(value, False))
    if verb == "t" and isinstance(value, bool):
        return to_text(value)
    if verb == "d" and isinstance(value, int):
        return f"{value:+d}" if "+" in flags else str(value)
    if verb in "xX" and isinstance(value, str):
        digits = value.encode("utf-8", "replace").hex()
        return digits.upper() if verb == "X" else digits
    if verb in "xXob" and isinstance(value, int):
        return format(value, ("#" if "#" in flags else "") + verb)
    if verb == "c" and isinstance(value, int) and 0 <= value < 0x110000:
        return chr(value)
    if verb in "feEgG" and number:
        places = min(int(precision or 0), MAX_WIDTH) if precision is not None else None
        return (
            to_text(float(value))
            if verb in "gG" and places is None
            else f"{value:.{6 if places is None else places}{verb}}"
        )
    return f"%!{verb}({kind(value)}={to_text(value, False)})"


def _printf(pattern: Any, *args: Any) -> str:
    if not isinstance(pattern, str):
        raise _fail("printf", f"format is not a string: {kind(pattern)}")
    used = 0

    def replace(match: re.Match[str]) -> str:
        nonlocal used
        if match["verb"] == "%":
            return "%"
        if used >= len(args):
            return _MISSING_ARGUMENT.format(verb=match["verb"])
        width = min(int(match["width"] or 0), MAX_WIDTH)
        text = _verb(match["verb"], match["flags"], match["precision"], args[used])
        used += 1
        if "-" in match["flags"]:
            return text.ljust(width)
        return text.zfill(width) if "0" in match["flags"] else text.rjust(width)

    text = _VERB.sub(replace, pattern)
    if used < len(args):
        extra = ", ".join(f"{kind(arg)}={to_text(arg, False)}" for arg in args[used:])
        text += f"%!(EXTRA {extra})"
    return text


def _js(*args: Any) -> str:
    text = _print(*args)
    escapes = {
        "\\": "\\\\",
        "'": "\\'",
        '"': '\\"',
        "<": "\\u003C",
        ">": "\\u003E",
        "&": "\\u0026",
        "=": "\\u003D",
    }
    return "".join(escapes.get(char) or (f"\\u{ord(char):04X}" if ord(char) < 32 else char) for char in text)


def _html(*args: Any) -> str:
    return html.escape(_print(*args)).replace("&quot;", "&#34;").replace("&#x27;", "&#39;")


def _urlquery(*args: Any) -> str:
    return urllib.parse.quote_plus(_print(*args).encode("utf-8", "replace"))


def _call(*_: Any) -> Any:
    raise _fail("call", "no functions among the values of a chat template")


def _json(value: Any) -> str:
    return gojson.dumps(plain(value), sort_keys=not isinstance(value, Struct | list))


def _current_date(*_: Any) -> str:
    return date.today().isoformat()


def _yesterday(*_: Any) -> str:
    return (date.today() - timedelta(days=1)).isoformat()


_TYPESCRIPT = {
    "string": "string",
    "number": "number",
    "integer": "number",
    "boolean": "boolean",
    "array": "any[]",
    "object": "Record<string, any>",
    "null": "null",
}


def typescript_type(prop: Any) -> str:
    """Return the TypeScript type of a schema property."""
    if not isinstance(prop, Struct):
        return "any"
    options = prop.fields.get("AnyOf") or []
    if options:
        return " | ".join(typescript_type(option) for option in options)
    return " | ".join(_TYPESCRIPT.get(name, "any") for name in prop.fields.get("Type") or []) or "any"


# "and" and "or" are here for the parser; the evaluator runs them itself because they stop early
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "and": _call,
    "or": _call,
    "not": lambda value: not truth(value),
    "eq": lambda first, *others: equal(first, others),
    "ne": lambda first, second: not equal(first, (second,)),
    "lt": less,
    "le": lambda first, second: not less(second, first),
    "gt": lambda first, second: less(second, first),
    "ge": lambda first, second: not less(first, second),
    "len": _len,
    "index": _index,
    "slice": _slice,
    "print": _print,
    "printf": _printf,
    "println": _println,
    "html": _html,
    "js": _js,
    "urlquery": _urlquery,
    "call": _call,
    "json": _json,
    "currentDate": _current_date,
    "yesterdayDate": _yesterday,
    "toTypeScriptType": typescript_type,
}
