"""OpenAI's ``/v1/responses``: bodies to the internal request.

The whole conversation comes with each request, as items; a client may name an item of a recent answer instead
of sending it. Whole responses are not stored, so what refers to one is refused. Tools that OpenAI's servers
would run are left out, with a warning.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from ftd import log
from ftd.api import toolchoice
from ftd.api.jsontext import Fields, kind_of
from ftd.api.kept_items import KeptItems
from ftd.api.openai import parse_effort, past_call
from ftd.api.request import (
    MAX_TOP_LOGPROBS,
    CompletionRequest,
    Message,
    Think,
    parse_keep_alive,
    parse_schema,
)
from ftd.chat.schema import Format
from ftd.errors import InvalidRequest, Unsupported

_log = logging.getLogger(__name__)

_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_WITH_LOGPROBS = "message.output_text.logprobs"


def parse_response(fields: Fields, kept: KeptItems) -> CompletionRequest:
    """Return the request of a ``/v1/responses`` body; raise InvalidRequest, or NotFound for a lost item."""
    model = fields.text("model")
    if not model:
        raise InvalidRequest("model is required")
    for name in ("previous_response_id", "conversation"):
        if fields.get(name):
            raise Unsupported(f"no responses are stored here: {name}", "send the whole conversation as input")
    if fields.get("prompt"):
        raise Unsupported("no prompts are stored here: prompt", "send the text as instructions and input")
    if fields.flag("background"):
        raise Unsupported("not supported: background", "leave background out")
    messages = list(_input(fields.get("input"), kept))
    if instructions := fields.text("instructions"):
        messages.insert(0, {"role": "system", "content": instructions})
    if not messages:
        raise InvalidRequest("input is required")
    tools, choice = toolchoice.parse_openai(fields, list(_tools(fields)))
    return CompletionRequest(
        model=model,
        stream=fields.flag("stream"),
        options=_options(fields),
        keep_alive_ns=parse_keep_alive(fields),
        think=_think(fields),
        is_think_optional=True,
        format=_format(fields),
        num_logprobs=_num_logprobs(fields),
        truncate=fields.text("truncation") == "auto",
        messages=messages,
        tools=tools,
        tool_choice=choice,
    )


def _options(fields: Fields) -> Mapping[str, Any]:
    options: dict[str, Any] = {"temperature": 1.0, **fields.mapping("options")}
    for name in ("temperature", "top_p"):
        if (value := fields.number(name)) is not None:
            options[name] = value
    if (num_ctx := fields.integer("num_ctx")) is not None:
        options["num_ctx"] = num_ctx
    if (limit := fields.integer("max_output_tokens")) is not None:
        options["num_predict"] = limit
    return options


def _think(fields: Fields) -> Think:
    return parse_effort(fields.mapping("reasoning").get("effort"))


def _format(fields: Fields) -> Format | None:
    wanted = Fields(Fields(fields.mapping("text"), "text.").mapping("format"), "text.format.")
    kind = wanted.text("type") or "text"
    if kind == "json_object":
        return "json"
    if kind == "json_schema":
        return parse_schema(wanted)
    if kind != "text":
        raise InvalidRequest(
            f"invalid text.format type: {kind:.50} (must be text, json_object or json_schema)"
        )
    return None


def _num_logprobs(fields: Fields) -> int:
    top = fields.integer("top_logprobs") or 0
    if not 0 <= top <= MAX_TOP_LOGPROBS:
        raise InvalidRequest(f"top_logprobs must be between 0 and {MAX_TOP_LOGPROBS}")
    return top if top or _WITH_LOGPROBS in fields.items("include") else -1


def _tools(fields: Fields) -> Iterator[dict[str, Any]]:
    for tool in fields.objects("tools"):
        yield from _tool(tool, "")


def _tool(tool: Fields, prefix: str) -> Iterator[dict[str, Any]]:
    """Yield a tool in the native form; one of a namespace is called ``namespace.name``."""
    kind, name = tool.text("type"), prefix + tool.text("name")
    if kind == "namespace":
        for member in tool.objects("tools"):
            yield from _tool(member, f"{name}.")
    elif kind == "function":
        description, parameters = tool.text("description"), dict(tool.mapping("parameters"))
        function: dict[str, Any] = {"name": name, "description": description, "parameters": parameters}
        if tool.flag("strict"):
            function["strict"] = True
        yield {"type": "function", "function": function}
    else:
        _log.warning(log.fields("tool left out", name=name, type=kind[:40]))


def _input(value: object, kept: KeptItems) -> Iterator[Message]:
    """Yield the native messages of the input: a text of the user, or items."""
    if isinstance(value, str):
        yield {"role": "user", "content": value}
        return
    if value is None:
        return
    if not isinstance(value, list):
        raise InvalidRequest(f"cannot use {kind_of(value)} for field input: it must be string or array")
    turn: dict[str, Any] = {}  # the assistant's message that items still add to
    for idx, raw in enumerate(value):
        if not isinstance(raw, dict):
            raise InvalidRequest(f"cannot use {kind_of(raw)} for input[{idx}]: it must be object")
        item = Fields(raw, f"input[{idx}].")
        if item.text("type") == "item_reference":
            item = Fields(kept.find(item.text("id")), f"input[{idx}].")
        kind = item.text("type") or ("message" if item.get("role") is not None else "")
        if kind == "reasoning":
            yield from _flushed(turn)
            turn = {"thinking": _thinking(item)}
        elif kind == "function_call":
            turn.setdefault("tool_calls", []).append(past_call(item.text("call_id"), item))
        elif kind == "message" and item.text("role") == "assistant":
            if "content" in turn or "tool_calls" in turn:
                yield from _flushed(turn)
                turn = {}
            turn["content"] = _content(item, "content")
        else:
            yield from _flushed(turn)
            turn = {}
            yield from _other(item, kind, idx)
    yield from _flushed(turn)


def _flushed(turn: dict[str, Any]) -> Iterator[Message]:
    """Yield the assistant's message made so far; thinking that led to nothing is none."""
    if "content" in turn or "tool_calls" in turn:
        yield {"role": "assistant", "content": "", **turn}


def _other(item: Fields, kind: str, idx: int) -> Iterator[Message]:
    if kind == "message":
        yield {"role": item.text("role"), "content": _content(item, "content")}
    elif kind == "function_call_output":
        call_id = item.text("call_id")
        yield {"role": "tool", "content": _content(item, "output"), "tool_call_id": call_id}
    elif not kind:
        raise InvalidRequest("input item missing required 'type' field")
    elif kind != "web_search_call":
        raise InvalidRequest(f'input[{idx}]: unknown input item type: "{kind:.50}"')


def _thinking(item: Fields) -> str:
    """Return the text of a reasoning item that an earlier answer of ours gave."""
    if text := item.text("encrypted_content"):
        return text
    return "".join(part.text("text") for part in item.objects("summary"))


def _content(item: Fields, name: str) -> str:
    """Return content as one text; parts of one message stand apart by a blank line."""
    content = item.get(name)
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for part in item.objects(name):
        kind = part.text("type")
        if kind == "input_file":
            raise Unsupported("file inputs are not currently supported", "send text only")
        if kind in ("input_image", "input_audio"):
            raise Unsupported(f"the model does not support this kind of content: {kind}", "send text only")
        if kind == "refusal":
            texts.append(part.text("refusal"))
        elif kind in _TEXT_PARTS:
            texts.append(part.text("text"))
        else:
            raise InvalidRequest(f"invalid message content type: {kind:.50}")
    return "\n\n".join(texts)
