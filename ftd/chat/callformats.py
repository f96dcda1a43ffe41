"""How models write tool calls: the marks around a call, and from its text to name and arguments.

    json   <tool_call>{"name": "f", "arguments": {…}}</tool_call>      Hermes, Qwen
           [TOOL_CALLS][{…}, {…}]   [TOOL_CALLS]f[ARGS]{…}             Mistral
           <|tool_call|>[{…}]   <|python_tag|>{…}   {…}                Granite, Llama 3, anything else
    xml    <tool_call><function=f><parameter=p>value</parameter></function></tool_call>      Qwen3-Coder
    pairs  <tool_call>f<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>              GLM

Values that a format writes as bare text get the type that the tool's schema declares.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ftd.chat.gotemplate import GoTemplateError, parse
from ftd.chat.gotemplate.discovery import tool_call_tag

_FUNCTION = re.compile(r"<function=([^>\n]+)>(.*?)(?:</function>|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_PAIR = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
_DECODER = json.JSONDecoder(strict=False)  # models put bare line ends into strings
_JUNK = " \t\r\n]}"


@dataclass(frozen=True, slots=True)
class CallFormat:
    """``tag`` opens a call (``{``: a bare object that begins the answer), ``closer`` ends it if known."""

    tag: str = "{"
    closer: str = ""
    body: Literal["json", "xml", "pairs"] = "json"

    @property
    def is_bare(self) -> bool:
        """True when nothing but the JSON itself tells a call from text."""
        return self.tag in ("{", "[")


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """One call as the model wrote it."""

    name: str
    arguments: dict[str, Any]


def call_format(kind: str, source: str) -> CallFormat:
    """Return the format that a template (``jinja`` or ``go``) writes calls in, so its model will too."""
    if kind == "go":
        try:
            tag = tool_call_tag(parse(source))
        except GoTemplateError:
            tag = "{"
        return CallFormat(tag, _closer(tag))
    if "<tool_call>" in source:
        body: Literal["json", "xml", "pairs"] = "json"
        if "<function=" in source:
            body = "xml"
        elif "<arg_key>" in source:
            body = "pairs"
        return CallFormat("<tool_call>", "</tool_call>", body)
    for tag in ("[TOOL_CALLS]", "<|tool_call|>", "<|python_tag|>"):
        if tag in source:
            return CallFormat("{" if tag == "<|python_tag|>" else tag)
    return CallFormat()


def _closer(tag: str) -> str:
    """Guess what ends a call that ``tag`` begins: ``</x>`` for ``<x>``, ``[/X]`` for ``[X]``."""
    if re.fullmatch(r"<\w+>", tag):
        return f"</{tag[1:]}"
    return f"[/{tag[1:]}" if re.fullmatch(r"\[\w+\]", tag) else ""


def parse_json(text: str) -> Any:
    """Return the JSON value that ``text`` begins with; ValueError if none, or if text follows it."""
    value, end = _DECODER.raw_decode(text)
    if text[end:].strip(_JUNK):
        raise ValueError("text after the value")
    return value


def calls_in(value: Any, prefix: str, names: Sequence[str], only_known: bool) -> list[ParsedCall]:
    """Return the calls in a JSON value; ``prefix`` is the text before it, which may hold the name."""
    if isinstance(value, list):
        return [call for item in value for call in calls_in(item, "", names, only_known)]
    if not isinstance(value, dict):
        return []
    name = value.get("name")
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
    found = _name_in(prefix, names)
    return [ParsedCall(found, value)] if found else []


def _arguments(value: Mapping[str, Any]) -> dict[str, Any]:
    for key in ("arguments", "parameters", "args"):
        arguments = value.get(key)
        if isinstance(arguments, str):
            try:
                arguments = _DECODER.decode(arguments)
            except (ValueError, RecursionError):
                continue
        if isinstance(arguments, dict):
            return arguments
    return {}


def _name_in(text: str, names: Sequence[str]) -> str:
    """Return the declared name that occurs first in ``text``, the longest of those that begin together."""
    found = [(text.find(name), -len(name), name) for name in names if name in text]
    return min(found)[2] if found else ""


def parse_xml(text: str, schemas: Mapping[str, Any]) -> list[ParsedCall]:
    """Return the calls of ``<function=…>`` elements."""
    calls = []
    for name, body in _FUNCTION.findall(text):
        pairs = _PARAMETER.findall(body)
        calls.append(ParsedCall(name.strip(), _typed(pairs, schemas.get(name.strip()))))
    return calls


def parse_pairs(text: str, schemas: Mapping[str, Any]) -> list[ParsedCall]:
    """Return the call of a name followed by key and value elements."""
    name = text.partition("<arg_key>")[0].strip()
    if not re.fullmatch(r"[\w.:-]+", name):
        return []
    pairs = [(key.strip(), value) for key, value in _PAIR.findall(text)]
    return [ParsedCall(name, _typed(pairs, schemas.get(name)))]


def _typed(pairs: Sequence[tuple[str, str]], schema: Any) -> dict[str, Any]:
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    declared = properties if isinstance(properties, Mapping) else {}
    return {key.strip(): _typed_value(value, declared.get(key.strip())) for key, value in pairs}


def _typed_value(text: str, schema: Any) -> Any:
    """Return ``text`` as it is where a string is declared, else as the JSON that it may be."""
    kinds = schema.get("type") if isinstance(schema, Mapping) else None
    if kinds == "string" or (isinstance(kinds, list) and "string" in kinds and text.strip() != "null"):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return {"True": True, "False": False, "None": None}.get(text.strip(), text)


def schemas_of(tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the parameter schema of each declared tool by name, in the order of declaration."""
    found: dict[str, Any] = {}
    for tool in tools:
        function = tool.get("function")
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            found[function["name"]] = function.get("parameters") or {}
    return found
