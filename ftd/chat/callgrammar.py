"""Grammars of answers that call tools, in each family's own way of writing calls.

    forced   [blanks] calls                      the answer is one call or several of the allowed tools
    lazy     text, or text opening-mark calls    free until the mark of a call appears, bound behind it

Arguments follow the schema of their tool: always where a call is forced, else where the tool is strict.
"""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from ftd import log
from ftd.chat.callbodies import kinds_of
from ftd.chat.callformats import CallFormat
from ftd.chat.lark import Lark
from ftd.chat.schema import MAX_SCHEMA_CHARS, check_grammar, enforceable
from ftd.errors import InvalidOption

_log = logging.getLogger(__name__)
# A model that cannot stop calling must stop some time
MAX_CALLS = 64
_ANY: dict[str, Any] = {"type": "object"}
_ROOT = "ftd-root"
_ELSEWHERE = re.compile(r"#(?!/\$defs/|/definitions/)(/|\Z)")


class ToolChoice(msgspec.Struct, frozen=True):
    """What a request says about calls. ``names``: the only tools that may be called, empty for all."""

    is_forced: bool = False
    names: tuple[str, ...] = ()
    is_parallel: bool = True


FREE_CHOICE = ToolChoice()


class _Tool(msgspec.Struct, frozen=True):
    name: str
    schema: Mapping[str, Any]  # an object's


def needs_grammar(tools: Sequence[Mapping[str, Any]], choice: ToolChoice) -> bool:
    """Say whether output has to be bound for what a request wants of its tools."""
    return bool(tools) and (choice.is_forced or bool(choice.names) or any(map(_is_strict, tools)))


def _is_strict(tool: Mapping[str, Any]) -> bool:
    function = tool.get("function")
    return isinstance(function, Mapping) and function.get("strict") is True


def tool_grammar(
    call_format: CallFormat,
    tools: Sequence[Mapping[str, Any]],
    choice: ToolChoice,
    special: Mapping[str, int],
) -> str:
    """Return the grammar of an answer; raise InvalidOption if the schema of a strict tool is none.

    special: texts of the vocabulary's special tokens -> ids. Takes milliseconds, and up to a second for the
    largest schemas: call it in a thread.
    """
    used = tuple(sorted((text, token) for text, token in special.items() if text in call_format.marks))
    try:
        tools_json = json.dumps(list(tools))
    except RecursionError:
        raise InvalidOption("the tools are nested too deeply") from None
    return _written(call_format, tools_json, choice, used)


@lru_cache(maxsize=64)
def _written(
    call_format: CallFormat, tools_json: str, choice: ToolChoice, special: tuple[tuple[str, int], ...]
) -> str:
    tools = _tools(json.loads(tools_json), choice)
    text = _Writer(call_format, dict(special), tools, choice).text()
    grammar = json.dumps({"grammars": [{"lark_grammar": text}]})
    # Formats that write each argument by itself use parts of schemas, which were checked as a whole
    check_grammar(grammar, f"invalid schemas of the tools {', '.join(tool.name for tool in tools):.100}")
    return grammar


def _tools(declared: Sequence[Mapping[str, Any]], choice: ToolChoice) -> list[_Tool]:
    found: list[_Tool] = []
    room = MAX_SCHEMA_CHARS
    for tool in declared:
        function = tool.get("function")
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str) or not name or (choice.names and name not in choice.names):
            continue
        assert isinstance(function, Mapping)
        is_strict = function.get("strict") is True
        schema: Mapping[str, Any] = _ANY
        if is_strict or choice.is_forced:
            schema = _usable(name, function.get("parameters"), is_strict, room)
            room -= len(json.dumps(schema))
        found.append(_Tool(name, schema))
    return found


def _usable(name: str, parameters: Any, is_strict: bool, room_chars: int) -> Mapping[str, Any]:
    """Return the schema that arguments of a tool are bound to; a loose one where its own cannot be used."""
    schema = dict(parameters) if isinstance(parameters, Mapping) else {}
    schema = {**_ANY, **{key: value for key, value in schema.items() if key != "x-guidance"}}
    if not schema.get("properties") and not schema.keys() & {
        "additionalProperties",
        "patternProperties",
        "$ref",
    }:
        schema["additionalProperties"] = False
    try:
        if len(json.dumps(schema)) > room_chars:
            raise InvalidOption(
                f"invalid schema of tool {name:.60}: the schemas of the tools have more than "
                f"{MAX_SCHEMA_CHARS} characters together",
                "describe fewer tools",
            )
        schema = enforceable(schema, f"invalid schema of tool {name:.60}")
    except InvalidOption as exc:
        if is_strict:
            raise
        _log.warning(log.fields("arguments not enforced", tool=name[:60], reason=exc.message))
        return dict(_ANY)
    return schema


class _Writer:
    """Writes the grammar of one request."""

    def __init__(
        self, call_format: CallFormat, special: Mapping[str, int], tools: Sequence[_Tool], choice: ToolChoice
    ) -> None:
        self._format = call_format
        self._lark = Lark(special)
        self._tools = tools
        self._choice = choice

    def text(self) -> str:
        """Return the whole grammar."""
        lark, form = self._lark, self._format
        if form.is_harmony:
            return lark.text(self._harmony())
        first, rest = self._calls()
        calls = f"{lark.literal(first)} {rest}" if first else rest
        if self._choice.is_forced:
            return lark.text(f"{lark.blanks()} {calls}")
        if form.is_bare:
            no_call = lark.rule(r"/[^{\[ \t\r\n](.|\n)*/", "T")
            return lark.text(f"{lark.blanks()} {no_call} | {lark.blanks()} {calls} | {lark.blanks()}")
        return lark.text(f"{lark.terminal('TEXT')} | {lark.until(first)} {rest}")

    def _calls(self) -> tuple[str, str]:
        """Return the literal that calls begin with, and what follows it."""
        lark, form = self._lark, self._format
        if form.is_list:
            item = lark.choice([self._item(tool) for tool in self._tools])
            more = f' ("," {lark.blanks()} {item}){{0,{MAX_CALLS - 1}}}' if self._choice.is_parallel else ""
            closer = f" {lark.literal(form.closer)}" if form.closer else ""
            begin = "" if form.tag.endswith("[") else f'{lark.blanks()} "[" '
            return form.tag, f'{begin}{lark.blanks()} {item}{more} {lark.blanks()} "]"{closer}'
        if form.body == "python":
            item = lark.choice([self._python(tool) for tool in self._tools])
            more = f' ("," {lark.blanks()} {item}){{0,{MAX_CALLS - 1}}}' if self._choice.is_parallel else ""
            return form.tag, f'"[" {item}{more} "]" {lark.literal(form.closer)}'
        if form.is_bare:
            item = lark.choice([self._item(tool) for tool in self._tools])
            return (
                "",
                f'{item} (";" {lark.blanks()} {item}){{0,{MAX_CALLS - 1}}}'
                if self._choice.is_parallel
                else item,
            )
        body = lark.rule(lark.choice([self._call(tool) for tool in self._tools]))
        tag = lark.literal(form.tag)
        again = f" ({lark.blanks()} {tag} {body}){{0,{MAX_CALLS - 1}}}" if self._choice.is_parallel else ""
        ending = f" {lark.blanks()} {lark.literal(form.ending)}" if form.ending else ""
        if form.opening:
            return form.opening, f"{lark.blanks()} {tag} {body}{again}{ending}"
        return form.tag, f"{body}{again}{ending}"

    def _item(self, tool: _Tool) -> str:
        """Return a call that is a JSON object."""
        lark, form = self._lark, self._format
        name, arguments = json.dumps(tool.name), lark.json(tool.schema)
        if not form.key:
            return f'{lark.literal("{" + name + ": ")} {arguments} "}}"'
        if form.tag == "<|START_ACTION|>":
            number = f'"{{\\"tool_call_id\\": \\"" {lark.terminal("DIGITS")} "\\","'
            head = f'{number} {lark.blanks()} "\\"tool_name\\": "'
        else:
            head = lark.literal('{"name": ')
        # Mistral writes an id behind the arguments
        tail = f'(", \\"id\\": \\"" {lark.terminal("WORD")} "\\"")?' if form.tag == "[TOOL_CALLS]" else ""
        return f'{head} {lark.literal(f"{name}, {json.dumps(form.key)}: ")} {arguments} {tail} "}}"'

    def _call(self, tool: _Tool) -> str:
        """Return what stands between the tag of one call and its closer, both excluded or not."""
        lark, form = self._lark, self._format
        closer = lark.literal(form.closer) if form.closer else ""
        if form.body == "xml":
            return self._xml(tool)
        if form.body == "pairs":
            return self._pairs(tool)
        if form.body == "gemma":
            return f"{lark.literal(f'call:{tool.name}')} {self._gemma(tool.schema, tool.schema)} {closer}"
        arguments = lark.json(tool.schema)
        if form.body == "json" and not form.separator:
            item = self._item(tool)
            if form.tag == "<tool_calls>" and self._choice.is_parallel:  # MiniMax M1: one object a line
                any_item = lark.choice([self._item(each) for each in self._tools])
                item = f"{item} ({lark.blanks()} {any_item}){{0,{MAX_CALLS - 1}}}"
            return f"{lark.blanks()} {item} {lark.blanks()} {closer}"
        before, after = "", ""
        if "function" in form.separator:  # DeepSeek R1
            return (
                f"{lark.literal(form.separator + tool.name + chr(10) + '```json' + chr(10))} {arguments} "
                f"{lark.literal(chr(10) + '```')} {closer}"
            )
        if form.tag == "<|tool_call_begin|>":
            before, after = lark.literal("functions."), f'":" {lark.terminal("DIGITS")}'
        elif form.tag == "<|tool_call:begin|>":
            before = f"{lark.terminal('WORD')} {lark.literal('<|tool_call:name|>')}"
        elif form.tag == "[TOOL_CALLS]" and lark.has("[CALL_ID]"):
            after = f"({lark.literal('[CALL_ID]')} {lark.terminal('WORD')})?"
        return (
            f"{before} {lark.literal(tool.name)} {after} {lark.literal(form.separator)} {arguments} {closer}"
        )

    def _xml(self, tool: _Tool) -> str:
        lark, form = self._lark, self._format
        if form.separator:  # <function=f>{…}</function>
            return f"{lark.literal(tool.name + '>')} {lark.json(tool.schema)} {lark.literal(form.closer)}"
        head, tail = f"{lark.blanks()} {lark.literal(f'<function={tool.name}>')}", lark.literal("</function>")
        if form.tag.endswith("name="):
            head, tail = lark.literal(f'"{tool.name}">'), ""
        parameters = [
            self._maybe(f"{lark.blanks()} {self._parameter(name, schema, tool.schema)}", is_required)
            for name, schema, is_required in _properties(tool.schema)
        ]
        return " ".join(
            (head, *parameters, lark.blanks(), tail, lark.blanks() if tail else "", lark.literal(form.closer))
        )

    def _parameter(self, name: str, schema: Any, root: Mapping[str, Any]) -> str:
        lark, tag = self._lark, self._format.tag
        is_text = _is_text(schema)
        if not tag.endswith("name="):
            opening, closing = f"<parameter={name}>", "</parameter>"
        elif tag == "<function name=":
            opening, closing = f'<param name="{name}">', "</param>"
        else:
            prefix = tag[1 : tag.index("invoke")]
            kind = f' string="{str(is_text).lower()}"' if "DSML" in prefix else ""
            opening, closing = f'<{prefix}parameter name="{name}"{kind}>', f"</{prefix}parameter>"
        return f"{lark.literal(opening)} {self._bare_value(schema, root, closing)}"

    def _pairs(self, tool: _Tool) -> str:
        lark, form = self._lark, self._format
        suffix = form.tag.removeprefix("<tool_call").removesuffix(">")
        parts = [lark.literal(tool.name), lark.blanks()]
        if suffix:
            parts[1:1] = [lark.literal(f"<tool_sep{suffix}>")]
        for name, schema, is_required in _properties(tool.schema):
            key = lark.literal(f"<arg_key{suffix}>{name}</arg_key{suffix}>")
            value = self._bare_value(schema, tool.schema, f"</arg_value{suffix}>")
            pair = f"{key} {lark.blanks()} {lark.literal(f'<arg_value{suffix}>')} {value} {lark.blanks()}"
            parts.append(self._maybe(pair, is_required))
        return " ".join((*parts, lark.literal(form.closer)))

    def _bare_value(self, schema: Any, root: Mapping[str, Any], closing: str) -> str:
        """Return a value that is written without quotes if it is text, and the mark behind it."""
        lark = self._lark
        end = lark.literal(closing)
        options = schema.get("enum") if isinstance(schema, Mapping) else None
        if isinstance(options, list) and options and all(isinstance(item, str) and item for item in options):
            return f"{lark.blanks()} {lark.choice(list(map(lark.literal, options)))} {lark.blanks()} {end}"
        if _is_text(schema):
            return lark.until(closing)
        return f"{lark.blanks()} {lark.json(_part(schema, root))} {lark.blanks()} {end}"

    def _python(self, tool: _Tool) -> str:
        lark = self._lark
        items = [
            (f"{lark.literal(name + '=')} {self._python_value(schema, tool.schema)}", is_required)
            for name, schema, is_required in _properties(tool.schema)
        ]
        return f'{lark.literal(tool.name + "(")} {self._listed(items)} ")"'

    def _python_value(self, schema: Any, root: Mapping[str, Any]) -> str:
        lark, kinds = self._lark, kinds_of(schema)
        options = schema.get("enum") if isinstance(schema, Mapping) else None
        if isinstance(options, list) and options and all(isinstance(item, str) for item in options):
            return lark.choice(
                [lark.literal(text) for item in options for text in (json.dumps(item), repr(item))]
            )
        value = lark.json(_part(schema, root))
        if kinds == {"boolean"}:
            return lark.choice([value, '"True"', '"False"'])
        return lark.choice([value, lark.terminal("QUOTED")]) if "string" in kinds else value

    def _gemma(self, schema: Any, root: Mapping[str, Any]) -> str:
        """Return an object with bare keys, texts between ``<|"|>``."""
        lark = self._lark
        items = [
            (f"{lark.literal(name + ':')} {self._gemma_value(prop, root)}", is_required)
            for name, prop, is_required in _properties(schema)
        ]
        return f'"{{" {self._listed(items)} "}}"'

    def _gemma_value(self, schema: Any, root: Mapping[str, Any]) -> str:
        lark, quote = self._lark, '<|"|>'
        kinds = kinds_of(schema)
        options = schema.get("enum") if isinstance(schema, Mapping) else None
        if isinstance(options, list) and options and all(isinstance(item, str) for item in options):
            return lark.choice([lark.literal(f"{quote}{option}{quote}") for option in options])
        if kinds == {"object"} and isinstance(schema, Mapping) and schema.get("properties"):
            return lark.rule(self._gemma(schema, root))
        if kinds == {"array"}:
            item = self._gemma_value(schema.get("items"), root)
            return f'"[" ({item} ("," {item})*)? "]"'
        if kinds and kinds <= {"integer", "number", "boolean", "null"}:
            return lark.json(_part(schema, root))
        return f"{lark.literal(quote)} {lark.until(quote)}"

    def _listed(self, items: Sequence[tuple[str, bool]]) -> str:
        """Return items with commas between them, in their order, some of which may be left out."""
        lark = self._lark
        following, leading = "", ""  # what comes behind an item, and what comes first
        for body, is_required in reversed(items):
            behind = f'"," {lark.blanks()} {body} {following}'
            first = f"{body} {following}"
            if is_required:
                following, leading = lark.rule(behind), lark.rule(first)
            else:
                following = lark.rule(f"({behind}) | {following}" if following else f"({behind})?")
                leading = lark.rule(f"({first}) | {leading}" if leading else f"({first})?")
        return leading

    def _harmony(self) -> str:
        lark = self._lark
        text, again = lark.terminal("TEXT"), lark.literal("<|end|><|start|>assistant")
        channel = lark.literal("<|channel|>")
        kind = f'" "? {lark.literal("<|constrain|>")} " "? "json"'
        begin = f'({kind} | " json")? {lark.literal("<|message|>")}'
        calls = []
        for tool in self._tools:
            recipient, arguments = lark.literal(f" to=functions.{tool.name}"), lark.json(tool.schema)
            # The recipient may stand before the channel or behind it
            calls.append(f'{channel} "commentary" {recipient} {begin} {arguments}')
            calls.append(f'{recipient} {channel} "commentary" {begin} {arguments}')
        call = f"{lark.choice(calls)} {lark.literal('<|call|>')}?"
        analysis = f'{channel} "analysis" {lark.literal("<|message|>")} {text} {again}'
        preamble = f'{channel} "commentary" {lark.literal("<|message|>")} {text} {again}'
        final = f'{channel} "final" {lark.literal("<|message|>")} {text}'
        if self._choice.is_forced:
            return f"({analysis})? {call}"
        return f"({analysis} | {preamble})* ({call} | {final})"

    @staticmethod
    def _maybe(body: str, is_required: bool) -> str:
        return f"({body})" if is_required else f"({body})?"


def _properties(schema: Any) -> list[tuple[str, Any, bool]]:
    """Return name, schema and whether it is required, of each property that is declared."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    required = schema.get("required") if isinstance(schema, Mapping) else None
    needed = required if isinstance(required, list) else []
    items = properties.items() if isinstance(properties, Mapping) else ()
    return [(name, prop, name in needed) for name, prop in items if name]


def _is_text(schema: Any) -> bool:
    kinds = kinds_of(schema)
    return "string" in kinds or (not kinds and not (isinstance(schema, Mapping) and "$ref" in schema))


def _part(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of a part with what it may refer to."""
    part = dict(schema) if isinstance(schema, Mapping) else {}
    part |= {key: root[key] for key in ("$defs", "definitions") if key in root and key not in part}
    # What the whole schema called ``#`` is one of the definitions here
    moved = _moved(part)
    if moved == part:
        return part
    return {**moved, "$defs": {**moved.get("$defs", {}), _ROOT: _moved(dict(root))}}


def _moved(value: Any) -> Any:
    """Return a schema whose references to other places than definitions begin at ``_ROOT``."""
    if isinstance(value, list):
        return [_moved(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    moved = {key: _moved(item) for key, item in value.items()}
    ref = moved.get("$ref")
    if isinstance(ref, str) and _ELSEWHERE.match(ref):
        moved["$ref"] = f"#/$defs/{_ROOT}{ref[1:]}"
    return moved
