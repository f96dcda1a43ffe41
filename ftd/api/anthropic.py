"""Anthropic's ``/v1/messages``: bodies to the internal request.

Fields that only steer Anthropic's own servers (``metadata``, ``cache_control``, ``context_management``, beta
headers) are accepted and change nothing. What would differ from one request to the next at the very start of
the prompt is dropped, so that the prefix cache still finds the rest.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ftd import log
from ftd.api import toolchoice
from ftd.api.jsontext import Fields, encode, kind_of
from ftd.api.request import CompletionRequest, Message, Think, parse_keep_alive, parse_schema
from ftd.chat.schema import Format
from ftd.errors import InvalidRequest, Unsupported

_log = logging.getLogger(__name__)

_EFFORTS: dict[str, Think] = {
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "max",
}
# Claude Code's first line of the system prompt: a checksum of the conversation
_BILLING = re.compile(r"^x-anthropic-billing-header:[^\n]*(?:\n|\Z)", re.MULTILINE | re.IGNORECASE)
_SERVER_CALLS = ("server_tool_use", "mcp_tool_use")
_SERVER_RESULTS = ("web_search_tool_result", "web_fetch_tool_result", "mcp_tool_result")


def parse_messages(fields: Fields, is_count: bool = False) -> CompletionRequest:
    """Return the request of a ``/v1/messages`` body, or of one to count; raise InvalidRequest."""
    model = fields.text("model")
    if not model:
        raise InvalidRequest("model is required")
    limit = fields.integer("max_tokens")
    if not is_count and (limit is None or limit <= 0):
        raise InvalidRequest("max_tokens is required and must be positive")
    raw_messages = list(fields.objects("messages"))
    if not raw_messages:
        raise InvalidRequest("messages is required")
    system = _system(fields.get("system"))
    tools, choice = toolchoice.parse_anthropic(fields, _tools(fields))
    return CompletionRequest(
        model=model,
        stream=fields.flag("stream"),
        options=_options(fields, limit),
        keep_alive_ns=parse_keep_alive(fields),
        think=_think(fields),
        is_think_optional=True,
        format=_format(fields),
        truncate=False,
        messages=[*([{"role": "system", "content": system}] if system else []), *_messages(raw_messages)],
        tools=tools,
        tool_choice=choice,
    )


def _options(fields: Fields, limit: int | None) -> Mapping[str, Any]:
    options: dict[str, Any] = dict(fields.mapping("options"))
    for name in ("temperature", "top_p"):
        if (value := fields.number(name)) is not None:
            options[name] = value
    for name in ("top_k", "num_ctx"):
        if (integer := fields.integer(name)) is not None:
            options[name] = integer
    if limit is not None:
        options["num_predict"] = limit
    if stops := fields.strings("stop_sequences"):
        options["stop"] = stops
    return options


def _think(fields: Fields) -> Think:
    """Return what ``thinking`` decides, else ``output_config.effort``, else nothing (``adaptive``)."""
    kind = fields.mapping("thinking").get("type")
    if kind in ("enabled", "disabled"):
        return bool(kind == "enabled")
    effort = fields.mapping("output_config").get("effort")
    return _EFFORTS.get(effort) if isinstance(effort, str) else None


def _format(fields: Fields) -> Format | None:
    wanted = fields.mapping("output_config").get("format") or fields.get("output_format")
    if wanted is None:
        return None
    if not isinstance(wanted, dict) or wanted.get("type") != "json_schema":
        raise InvalidRequest("output_config.format must be an object of type json_schema")
    return parse_schema(Fields(wanted, "output_config.format."))


def _tools(fields: Fields) -> list[dict[str, Any]]:
    """Return tools in the native form; those that Anthropic's servers run have no schema, and no place."""
    tools = []
    for tool in fields.objects("tools"):
        name, schema = tool.text("name"), tool.get("input_schema")
        if not isinstance(schema, dict):
            _log.warning(log.fields("tool left out", name=name, type=str(tool.get("type"))[:40]))
            continue
        function: dict[str, Any] = {
            "name": name,
            "description": tool.text("description"),
            "parameters": schema,
        }
        if tool.flag("strict"):
            function["strict"] = True
        tools.append({"type": "function", "function": function})
    return tools


def _system(system: object) -> str:
    """Return the system text: a string, or text blocks joined, without the line that differs each time."""
    if system is None:
        return ""
    if isinstance(system, str):
        texts = [system]
    elif isinstance(system, list):
        texts = [_text(Fields(block, "system.")) for block in map(_block, system)]
    else:
        raise InvalidRequest(f"cannot use {kind_of(system)} for field system: it must be string or array")
    return "".join(_BILLING.sub("", text) for text in texts)


def _messages(messages: list[Fields]) -> Iterator[Message]:
    """Yield native messages: a turn's tool results first, then what else it says."""
    for fields in messages:
        role, content = fields.text("role").lower(), fields.get("content")
        if role == "system":
            if text := _system(content):
                yield {"role": "system", "content": text}
        elif isinstance(content, str):
            yield {"role": role, "content": content}
        elif isinstance(content, list):
            yield from _turn(role, (Fields(block, "content.") for block in map(_block, content)))
        else:
            raise InvalidRequest(
                f"cannot use {kind_of(content)} for field content: it must be string or array"
            )


def _turn(role: str, blocks: Iterable[Fields]) -> Iterator[Message]:
    message: dict[str, Any] = {"role": role, "content": ""}
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in blocks:
        kind = block.text("type")
        if kind == "tool_result" or kind in _SERVER_RESULTS:
            content = _result(block.get("content"))
            yield {"role": "tool", "content": content, "tool_call_id": block.text("tool_use_id")}
        elif kind == "tool_use" or kind in _SERVER_CALLS:
            calls.append(_call(block))
        elif kind == "thinking":
            thoughts.append(block.text("thinking"))
        elif kind in ("text", "image", "document"):
            texts.append(_text(block))
    message["content"] = "".join(texts)
    if thoughts:
        message["thinking"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    if len(message) > 2 or message["content"]:
        yield message


def _call(block: Fields) -> dict[str, Any]:
    for name in ("id", "name"):
        if not block.text(name):
            raise InvalidRequest(f"tool_use block missing required '{name}' field")
    function = {"name": block.text("name"), "arguments": block.mapping("input")}
    return {"id": block.text("id"), "type": "function", "function": function}


def _result(content: object) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        return encode(content).decode("ascii")
    texts = []
    for block in map(_block, content):
        kind = block.get("type")
        texts.append(
            _text(Fields(block, "content."))
            if kind in ("text", "image", "document")
            else encode(block).decode("ascii")
        )
    return "".join(texts)


def _text(block: Fields) -> str:
    """Return the text of a block; other kinds of content cannot be shown to a model that only reads."""
    kind = block.text("type")
    if kind == "text":
        return block.text("text")
    source = Fields(block.mapping("source"), "source.")
    source_kind = source.text("type")
    if kind == "document" and source_kind == "text":
        return source.text("data")
    if kind == "image" and source_kind != "base64":
        raise InvalidRequest(f"invalid image source type: {source_kind}. Only base64 images are supported.")
    raise Unsupported(f"the model does not support this kind of content: {kind}", "send text only")


def _block(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"cannot use {kind_of(value)} as a content block: it must be object")
    return value
