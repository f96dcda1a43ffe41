"""What requests say about tool calls: ``tool_choice`` and ``parallel_tool_calls`` in the words of each API.

OpenAI      "auto" | "none" | "required" | a function by name | allowed_tools (a mode and names)
Anthropic   {"type": "auto" | "none" | "any" | "tool", "name", "disable_parallel_tool_use"}
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ftd.api.jsontext import Fields
from ftd.chat.callbodies import schemas_of
from ftd.chat.callgrammar import ToolChoice
from ftd.errors import InvalidRequest

Tools = Sequence[Mapping[str, Any]]
_WORDS = ("auto", "none", "required")


def parse_openai(fields: Fields, tools: Tools) -> tuple[Tools, ToolChoice]:
    """Return the tools that the model is shown and how it may call them; raise InvalidRequest."""
    is_parallel = fields.flag("parallel_tool_calls", True)
    wanted = fields.get("tool_choice")
    if wanted is None or wanted == "auto":
        return tools, ToolChoice(is_parallel=is_parallel)
    if wanted == "none":
        return (), ToolChoice()
    if wanted == "required":
        return tools, _checked(tools, ToolChoice(is_forced=True, is_parallel=is_parallel))
    if not isinstance(wanted, dict):
        raise InvalidRequest(
            f"invalid tool_choice: {str(wanted)[:50]} (must be {', '.join(_WORDS)} or an object)"
        )
    choice = Fields(wanted, "tool_choice.")
    kind = choice.text("type")
    if kind == "allowed_tools":
        allowed = Fields(choice.mapping("allowed_tools") or wanted, "tool_choice.allowed_tools.")
        names = tuple(filter(None, map(_name, allowed.objects("tools"))))
        mode = allowed.text("mode") or "auto"
        if mode not in ("auto", "required"):
            raise InvalidRequest(f"invalid tool_choice mode: {mode:.50} (must be auto or required)")
        return tools, _checked(tools, ToolChoice(mode == "required", names, is_parallel))
    name = _name(choice)
    if kind != "function" or not name:
        raise InvalidRequest(
            f"invalid tool_choice: type {kind:.50} (name a function, or say {', '.join(_WORDS)})"
        )
    return tools, _checked(tools, ToolChoice(is_forced=True, names=(name,), is_parallel=False))


def _name(tool: Fields) -> str:
    return tool.text("name") or Fields(tool.mapping("function"), "function.").text("name")


def parse_anthropic(fields: Fields, tools: Tools) -> tuple[Tools, ToolChoice]:
    """Return the tools that the model is shown and how it may call them; raise InvalidRequest."""
    choice = Fields(fields.mapping("tool_choice"), "tool_choice.")
    kind = choice.text("type") or "auto"
    is_parallel = not choice.flag("disable_parallel_tool_use")
    if kind == "none":
        return (), ToolChoice()
    if kind == "auto":
        return tools, ToolChoice(is_parallel=is_parallel)
    if kind == "any":
        return tools, _checked(tools, ToolChoice(is_forced=True, is_parallel=is_parallel))
    if kind == "tool":
        name = choice.text("name")
        return tools, _checked(tools, ToolChoice(is_forced=True, names=(name,), is_parallel=False))
    raise InvalidRequest(f"invalid tool_choice type: {kind:.50} (must be auto, any, tool or none)")


def _checked(tools: Tools, choice: ToolChoice) -> ToolChoice:
    declared = list(schemas_of(tools))
    if choice.is_forced and not declared:
        raise InvalidRequest(
            "tool_choice asks for a call, but the request has no tools that can be called here"
        )
    if unknown := _first(name for name in choice.names if name not in declared):
        raise InvalidRequest(f"tool_choice names a tool that is not among the tools: {unknown:.60}")
    return choice


def _first(names: Iterable[str]) -> str | None:
    return next((name or "(empty)" for name in names), None)
