"""From the text of a tool call to its name and arguments, in each of the ways that models write one.

    json      {"name": "f", "arguments": {…}}, one or several, in a list or not
    named     f … {…}: the name stands before the arguments
    xml       <function=f><parameter=p>value</parameter></function>, <invoke name="f"><parameter name="p">…
    pairs     f<arg_key>k</arg_key><arg_value>v</arg_value>
    python    [f(a=1, b="x")]
    gemma     call:f{a:1,b:<|"|>x<|"|>}

Values that a format writes as bare text get the type that the tool's schema declares. All of it is linear
in the length of the text; what is no call gives none.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from ftd.chat.literals import Literals, finite

Body = Literal["json", "named", "xml", "pairs", "python", "gemma", "harmony"]

# Models put bare line ends into strings; NaN and Infinity, which no answer may hold, are null
_DECODER = json.JSONDecoder(strict=False, parse_float=finite, parse_constant=lambda name: None)
_JUNK = " \t\r\n]}"
_BETWEEN = re.compile(r"[\s,;]*")
_ARGUMENTS = ("arguments", "parameters", "args")
_NAME = re.compile(r"[\w.:/-]+")
_PREFIX = r"(?:｜DSML｜|\w{1,20}:)?"
_FUNCTION = re.compile(rf"<({_PREFIX})(?:function=|function name=\"|invoke name=\")([^\">\n]{{1,200}})\"?>")
_PARAMETER = re.compile(
    rf"<{_PREFIX}(?:parameter=|parameter name=\"|param name=\")([^\">\n]{{1,200}})\"?"
    r"(?: string=\"(true|false)\")?>"
)
_PARAMETER_END = re.compile(rf"</{_PREFIX}param(?:eter)?>")
_FUNCTION_END = re.compile(rf"</{_PREFIX}(?:function|invoke)>")
_KEY_MARK = re.compile(r"</?arg_(key|value)(?::\w{1,40})?>")
_NAME_MARK = re.compile(r"<tool_sep(?::\w{1,40})?>")
# Words that formats write between their marks; they are names of tools only if a tool is called so
_WORDS = frozenset(("function", "functions", "json", "tool", "call", "ARGS", "CALL_ID"))


class ParsedCall(msgspec.Struct, frozen=True):
    """One call as the model wrote it."""

    name: str
    arguments: dict[str, Any]


def parse_body(
    kind: Body, text: str, schemas: Mapping[str, Any], *, only_known: bool = False, is_whole: bool = True
) -> list[ParsedCall]:
    """Return the calls in the text between two marks.

    only_known: nothing but their names tells calls from other text. is_whole: the closing mark came, so
    what the text lacks at its end was forgotten and not cut off.
    """
    names = list(schemas)
    try:
        if kind == "xml":
            return parse_xml(text, schemas, is_whole)
        if kind == "pairs":
            return parse_pairs(text, schemas, is_whole)
        if kind == "python":
            return parse_python(text, names)
        if kind == "gemma":
            return parse_gemma(text)
        if kind == "named":
            return parse_named(text, names, is_whole)
        start = min((idx for idx in map(text.find, "{[") if idx >= 0), default=len(text))
        if text[:start].strip():  # behind a name only an object can be meant: f[ARGS]{…}
            start = max(text.find("{"), start)
        calls: list[ParsedCall] = []
        for value in parse_values(text[start:], is_whole):
            calls += calls_in(value, text[:start], names, only_known)
        return calls
    except (ValueError, RecursionError):
        return []


def parse_values(text: str, is_whole: bool = True) -> list[Any]:
    """Return the JSON values that ``text`` consists of; ValueError if there is anything else in it."""
    values: list[Any] = []
    position = 0
    while position < len(text) or not values:
        value, position = _value(text, position, is_whole)
        values.append(value)
        position = _BETWEEN.match(text, position).end()  # type: ignore[union-attr]
        if not text[position:].strip(_JUNK):
            return values
    return values


def _value(text: str, position: int, is_whole: bool) -> tuple[Any, int]:
    """Return the value at ``position`` and where it ends, read as JSON or else as the nearest thing to it."""
    try:
        return _DECODER.raw_decode(text, position)
    except ValueError:
        reader = Literals(text, position)
        try:
            return reader.value(), reader.position
        except ValueError:
            closed = _closed(text[position:]) if is_whole else ""
            if not closed:
                raise
            return _DECODER.raw_decode(closed)[0], len(text)


def _closed(text: str) -> str:
    """Return ``text`` with the brackets that are missing at its end; empty if it ends within a string."""
    open_brackets: list[str] = []
    in_string = escaped = False
    for char in text:
        if in_string:
            in_string = escaped or char != '"'
            escaped = char == "\\" and not escaped
        elif char == '"':
            in_string = True
        elif char in "{[":
            open_brackets.append("}" if char == "{" else "]")
        elif char in "}]" and (not open_brackets or open_brackets.pop() != char):
            return ""
    return "" if in_string or not open_brackets else text + "".join(reversed(open_brackets))


def calls_in(value: Any, prefix: str, names: Sequence[str], only_known: bool) -> list[ParsedCall]:
    """Return the calls in a JSON value; ``prefix`` is the text before it, which may hold the name."""
    if isinstance(value, list):
        return [call for item in value for call in calls_in(item, "", names, only_known)]
    if not isinstance(value, dict):
        return []
    name = value.get("name", value.get("tool_name"))
    if isinstance(name, dict):
        return calls_in(name, prefix, names, only_known)
    function = value.get("function")
    if isinstance(function, dict):
        return calls_in(function, prefix, names, only_known)
    if isinstance(name, str) and (name in names or not (only_known or prefix.strip())):
        return [ParsedCall(name, _arguments(value))]
    for known in names:
        if isinstance(value.get(known), dict) and len(value) == 1:
            return [ParsedCall(known, value[known])]
    found = name_in(prefix, names)
    return [ParsedCall(found, value)] if found else []


def _arguments(value: Mapping[str, Any]) -> dict[str, Any]:
    for key in _ARGUMENTS:
        arguments = value.get(key)
        if isinstance(arguments, str):
            try:
                arguments = _DECODER.decode(arguments)
            except (ValueError, RecursionError):
                continue
        if isinstance(arguments, dict):
            return arguments
    return {}


def name_in(text: str, names: Sequence[str], is_marked: bool = False) -> str:
    """Return the name of the tool in ``text``: a declared one, or if ``is_marked`` what may be one."""
    words = [_bare(word) for word in _NAME.findall(text)]
    for word in words:
        if word in names:
            return word
    found = [(text.find(name), -len(name), name) for name in names if name in text]
    if found:
        return min(found)[2]
    unknown = [word for word in words if word and word not in _WORDS]
    return unknown[0] if is_marked and unknown else ""


def _bare(word: str) -> str:
    """Return a name without what formats put around it: ``functions.f:0``."""
    return re.sub(r":\d{1,6}$", "", word.strip(":").removeprefix("functions."))


def parse_named(text: str, names: Sequence[str], is_whole: bool = True) -> list[ParsedCall]:
    """Return the call whose arguments stand behind its name."""
    start = text.find("{")
    if start < 0:
        return []
    value = parse_values(text[start:].rstrip().removesuffix("```"), is_whole)[0]
    name = name_in(text[:start], names, is_marked=True)
    return [ParsedCall(name, value)] if name and isinstance(value, dict) else []


def parse_xml(text: str, schemas: Mapping[str, Any], is_whole: bool = True) -> list[ParsedCall]:
    """Return the calls of elements that are named after functions and parameters."""
    calls: list[ParsedCall] = []
    starts = list(_FUNCTION.finditer(text))
    for idx, start in enumerate(starts):
        limit = starts[idx + 1].start() if idx + 1 < len(starts) else len(text)
        name = start[2].strip()
        end = _FUNCTION_END.search(text, start.end(), limit)
        if end is None and not is_whole:
            return calls
        body = text[start.end() : end.start() if end else limit]
        if body.lstrip()[:1] == "{":  # <function=f>{…}</function>
            values = parse_values(body.strip(), is_whole)
            calls += [ParsedCall(name, value) for value in values[:1] if isinstance(value, dict)]
            continue
        calls.append(ParsedCall(name, dict(_parameters(body, schemas.get(name)))))
    return calls


def _parameters(text: str, schema: Any) -> Iterator[tuple[str, Any]]:
    declared = _declared(schema)
    position = 0
    while start := _PARAMETER.search(text, position):
        end = _PARAMETER_END.search(text, start.end())
        if end is None:
            return
        position = end.end()
        key, raw = start[1].strip(), text[start.end() : end.start()]
        raw = raw.removeprefix("\n").removesuffix("\n")
        kind = declared.get(key)
        if start[2] == "false":
            kind = {}
        elif start[2] == "true" and kinds_of(kind) != {"string"}:
            kind = {"type": "string"}
        yield key, typed_value(raw, kind)


def parse_pairs(text: str, schemas: Mapping[str, Any], is_whole: bool = True) -> list[ParsedCall]:
    """Return the call of a name followed by key and value elements."""
    marks = list(_KEY_MARK.finditer(text))
    head = _NAME_MARK.sub("", text[: marks[0].start()] if marks else text)
    name = head.strip()
    is_cut = not is_whole and not (marks and marks[-1][0].startswith("</") and marks[-1][1] == "value")
    if is_cut or not re.fullmatch(r"[\w.:/-]+", name):
        return []
    declared = _declared(schemas.get(name))
    arguments: dict[str, Any] = {}
    key, start = "", 0
    for mark in marks:
        is_end = mark[0].startswith("</")
        if not is_end:
            start = mark.end()
        elif mark[1] == "key":
            key = text[start : mark.start()].strip()
        elif key:
            arguments[key] = typed_value(text[start : mark.start()], declared.get(key))
            key = ""
    return [ParsedCall(name, arguments)]


def parse_python(text: str, names: Sequence[str]) -> list[ParsedCall]:
    """Return calls written as in Python: ``[f(a=1), g()]``, or as JSON."""
    reader = Literals(text)
    is_list = reader.take("[")
    if reader.peek() in ("{", "["):
        return [call for value in parse_values(text) for call in calls_in(value, "", names, False)]
    calls: list[ParsedCall] = []
    while reader.peek() not in ("", "]"):
        name = reader.word()
        if not reader.take("("):
            raise ValueError("no call")
        calls.append(ParsedCall(name, reader.keywords()))
        reader.take(",")
    if is_list and not reader.take("]"):
        raise ValueError("list of calls without an end")
    return calls


def parse_gemma(text: str) -> list[ParsedCall]:
    """Return the call of ``call:f{…}``."""
    reader = Literals(text)
    reader.take("call:")
    name = reader.word()
    if reader.peek() != "{":
        raise ValueError("no arguments")
    return [ParsedCall(name, reader.value())]


def _declared(schema: Any) -> Mapping[str, Any]:
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return properties if isinstance(properties, Mapping) else {}


def typed_value(text: str, schema: Any) -> Any:
    """Return ``text`` as it is where a string is declared, else as the JSON that it may be."""
    kinds = kinds_of(schema)
    options = schema.get("enum") if isinstance(schema, Mapping) else None
    if isinstance(options, list) and text.strip() in options:
        return text.strip()
    if kinds == {"string"} or ("string" in kinds and text.strip() != "null"):
        return text
    try:
        value = _DECODER.decode(text)
    except (ValueError, RecursionError):
        try:
            reader = Literals(text)
            value = reader.value()
        except ValueError:
            return text
        return text if reader.peek() else value
    return text if value is None and text.strip() != "null" else value


def kinds_of(schema: Any) -> set[str]:
    """Return the JSON types that a schema allows as far as it says so in plain words."""
    if not isinstance(schema, Mapping):
        return set()
    kinds = schema.get("type")
    if isinstance(kinds, str):
        return {kinds}
    if isinstance(kinds, list):
        return {kind for kind in kinds if isinstance(kind, str)}
    found: set[str] = set()
    choices = (schema.get("anyOf"), schema.get("oneOf"))
    for option in (item for items in choices if isinstance(items, list) for item in items):
        if isinstance(option, Mapping) and isinstance(option.get("type"), str):
            found.add(option["type"])
    if not found and isinstance(schema.get("enum"), list):
        found = {"string"} if all(isinstance(item, str) for item in schema["enum"]) else set()
    return found


def schemas_of(tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the parameter schema of each declared tool by name, in the order of declaration."""
    found: dict[str, Any] = {}
    for tool in tools:
        function = tool.get("function")
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            found[function["name"]] = function.get("parameters") or {}
    return found
