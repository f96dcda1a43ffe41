"""The data of a chat as Go templates see it, and the three ways in which a template is run over it.

    suffix     prompt and suffix are both given: one run with Prompt and Suffix
    messages   the template mentions .Messages: one run over all of them
    legacy     otherwise: one run a finished turn, the last one cut behind .Response

The values are "messages" (as ``ftd.chat.conversation`` makes them), "tools", "think", "prompt" and "suffix".
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

from ftd.chat.gotemplate import discovery
from ftd.chat.gotemplate import nodes as n
from ftd.chat.gotemplate.discovery import mentions, variables
from ftd.chat.gotemplate.evaluator import Evaluator
from ftd.chat.gotemplate.parser import parse
from ftd.chat.gotemplate.values import JsonList, JsonMap, Struct, TypeList


def pieces(source: str, values: dict[str, Any]) -> Iterator[str]:
    """Yield the parts of the prompt; raise GoTemplateError."""
    tree = executable(source)
    think = _think(values.get("think"))
    if values.get("prompt") and values.get("suffix"):
        data = {"Prompt": values["prompt"], "Suffix": values["suffix"], "System": "", "Response": ""}
        yield Evaluator(tree).run(data | think)
        return
    messages = collate(values.get("messages") or [])
    if "messages" in variables(tree):
        tools = values.get("tools")
        yield Evaluator(tree).run(
            {
                "System": "\n\n".join(m["content"] for m in messages if m["role"] == "system"),
                "Messages": [_message(message) for message in messages],
                "Tools": JsonList(_tool(tool) for tool in tools) if tools else None,
                "Response": "",
            }
            | think
        )
        return
    yield from _legacy(tree, messages, think)


def literals(source: str) -> list[str]:
    """Return the texts that the template writes by itself; raise GoTemplateError if it does not parse."""
    return discovery.literals(parse(source))


def fault(exc: Exception) -> tuple[str, str] | None:
    """Return the status of a template's fault and what to say of it, None if it just failed."""
    return (exc.status, str(exc)) if isinstance(exc, n.GoTemplateError) else None


@lru_cache(maxsize=32)
def executable(source: str) -> n.Tree:
    """Return the tree to run: ``{{ .Response }}`` is added where neither it nor messages are mentioned."""
    tree = parse(source)
    if variables(tree) & {"messages", "response"}:
        return tree
    response = n.Action(n.Pipe([n.Command([n.Field(["Response"])])]))
    return replace(tree, root=n.Block([*tree.root.nodes, response]))


def collate(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge neighbours of the same role (tool messages apart), with an empty line between their texts."""
    merged: list[dict[str, Any]] = []
    for message in messages:
        if merged and message["role"] == merged[-1]["role"] != "tool" and not message.get("tool_calls"):
            texts = filter(None, (merged[-1]["content"], message["content"]))
            merged[-1] = merged[-1] | {"content": "\n\n".join(texts)}
        else:
            merged.append(message)
    return merged


def _legacy(tree: n.Tree, messages: list[dict[str, Any]], think: dict[str, Any]) -> Iterator[str]:
    turn = {"System": "", "Prompt": "", "Response": ""}
    for message in messages:
        role, content = message["role"], message["content"]
        ends = {"system": turn["Prompt"] or turn["Response"], "user": turn["Response"]}.get(role)
        if ends:
            yield Evaluator(tree).run(turn | think)
            turn = dict.fromkeys(turn, "")
        key = {"system": "System", "user": "Prompt", "assistant": "Response"}.get(role)
        if key:
            turn[key] = content
    yield Evaluator(replace(tree, root=_cut(tree.root)[0])).run(turn | think)


def _cut(block: n.Block) -> tuple[n.Block, bool]:
    """Return ``block`` without what follows the first use of ``.Response``, and whether there was one."""
    kept: list[n.Node] = []
    for node in block.nodes:
        if isinstance(node, n.Action) and mentions(node, "Response"):
            return n.Block([*kept, node]), True
        if isinstance(node, n.If | n.Range):
            body, was_cut = _cut(node.body)
            otherwise = None
            if node.otherwise is not None and not was_cut:
                otherwise, was_cut = _cut(node.otherwise)
            kept.append(replace(node, body=body, otherwise=otherwise))
            if was_cut:
                return n.Block(kept), True
        else:
            kept.append(node)
    return n.Block(kept), False


def _think(think: bool | str | None) -> dict[str, Any]:
    level = think if isinstance(think, str) else "medium" if think else ""
    return {"Think": bool(think), "ThinkLevel": level, "IsThinkSet": think is not None}


def _message(message: dict[str, Any]) -> Struct:
    return Struct(
        {
            "Role": message["role"],
            "Content": message["content"],
            "Thinking": message.get("thinking", ""),
            "Images": [],
            "ToolCalls": [_call(call, idx) for idx, call in enumerate(message.get("tool_calls") or ())],
            "ToolName": message.get("name", "") if message["role"] == "tool" else "",
            "ToolCallID": message.get("tool_call_id", ""),
        },
        message,
    )


def _call(call: dict[str, Any], idx: int) -> Struct:
    function = call["function"]
    arguments = function["arguments"]
    fields = {
        "Index": idx,
        "Name": function["name"],
        "Arguments": JsonMap(arguments) if isinstance(arguments, dict) else arguments,
    }
    shown = {"name": function["name"], "arguments": fields["Arguments"]}
    return Struct({"ID": call.get("id", ""), "Function": Struct(fields, shown)}, {"function": shown})


def _tool(tool: dict[str, Any]) -> Struct:
    function = tool.get("function") or {}
    parameters = function.get("parameters") or {}
    properties = _properties(parameters.get("properties"))
    shown_parameters = _present(
        {
            "type": parameters.get("type") or "",
            "$defs": parameters.get("$defs"),
            "items": parameters.get("items"),
            "required": parameters.get("required"),
        }
    ) | {"properties": properties}
    parameter_fields = Struct(
        {
            "Type": parameters.get("type") or "",
            "Defs": parameters.get("$defs"),
            "Items": parameters.get("items"),
            "Required": list(parameters.get("required") or ()),
            "Properties": properties,
        },
        shown_parameters,
    )
    shown = {
        "name": function.get("name") or "",
        "description": function.get("description") or "",
        "parameters": shown_parameters,
    }
    fields = {
        "Name": shown["name"],
        "Description": shown["description"],
        "Parameters": parameter_fields,
    }
    kind = tool.get("type") or "function"
    whole = _present({"type": kind, "items": tool.get("items")}) | {"function": shown}
    return Struct({"Type": kind, "Items": tool.get("items"), "Function": Struct(fields, shown)}, whole)


def _properties(properties: Any) -> JsonMap:
    items = properties.items() if isinstance(properties, dict) else ()
    return JsonMap((name, _property(prop)) for name, prop in items)


def _property(prop: Any) -> Struct:
    prop = prop if isinstance(prop, dict) else {}
    kinds = prop.get("type")
    types = TypeList([kinds] if isinstance(kinds, str) else kinds or ())
    options = [_property(option) for option in prop.get("anyOf") or ()]
    nested = _properties(prop.get("properties"))
    shown = _present(
        {
            "anyOf": options,
            "type": types,
            "items": prop.get("items"),
            "description": prop.get("description"),
            "enum": prop.get("enum"),
            "properties": nested,
            "required": prop.get("required"),
        }
    )
    fields = {
        "AnyOf": options,
        "Type": types,
        "Items": prop.get("items"),
        "Description": prop.get("description") or "",
        "Enum": list(prop.get("enum") or ()),
        "Properties": nested,
        "Required": list(prop.get("required") or ()),
    }
    return Struct(fields, shown)


def _present(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value not in (None, "", [], {})}
