"""Ollama's ``/api/generate`` and ``/api/chat``: bodies to requests, events to objects.

Fields of an object keep Ollama's order; the metrics come with the last one only and are left out when zero.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from ftd.api import toolchoice
from ftd.api.jsontext import Fields, timestamp
from ftd.api.request import (
    CompletionRequest,
    Delta,
    Done,
    Event,
    Logprob,
    Message,
    ToolCall,
    parse_arguments,
    parse_format,
    parse_keep_alive,
    parse_logprobs,
    parse_think,
    refuse_images,
)
from ftd.errors import InvalidRequest


def parse_generate(fields: Fields) -> CompletionRequest:
    """Return the request of a ``/api/generate`` body; raise InvalidRequest."""
    num_logprobs = parse_logprobs(fields)
    model = fields.text("model")
    refuse_images(fields.items("images"), model)
    request = CompletionRequest(
        model=model,
        num_logprobs=num_logprobs,
        **_common(fields),
        prompt=fields.text("prompt"),
        suffix=fields.text("suffix"),
        system=fields.text("system"),
        template=fields.text("template"),
        context=_token_ids(fields),
        raw=fields.flag("raw"),
    )
    if request.raw and (request.template or request.system or request.context):
        raise InvalidRequest("raw mode does not support template, system, or context")
    return request


def _common(fields: Fields) -> dict[str, Any]:
    """Return what both routes take."""
    return {
        "stream": fields.flag("stream", True),
        "options": fields.mapping("options"),
        "keep_alive_ns": parse_keep_alive(fields),
        "think": parse_think(fields.get("think")),
        "format": parse_format(fields.get("format")),
        "truncate": fields.flag("truncate", True),
        "shift": fields.flag("shift", True),
        "render_only": fields.flag("_debug_render_only"),
    }


def _token_ids(fields: Fields) -> Sequence[int]:
    ids = fields.items("context")
    if not all(isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in ids):
        raise InvalidRequest("field context must be an array of token ids")
    return ids


def parse_chat(fields: Fields) -> CompletionRequest:
    """Return the request of a ``/api/chat`` body; raise InvalidRequest."""
    num_logprobs = parse_logprobs(fields)
    model = fields.text("model")
    if not model:
        raise InvalidRequest("model is required")
    # Ollama's own API has no tool_choice; here it takes OpenAI's
    tools, choice = toolchoice.parse_openai(fields, [tool.values for tool in fields.objects("tools")])
    return CompletionRequest(
        model=model,
        num_logprobs=num_logprobs,
        **_common(fields),
        messages=[_message(message, model) for message in fields.objects("messages")],
        tools=tools,
        tool_choice=choice,
    )


def _message(fields: Fields, model: str) -> Message:
    refuse_images(fields.items("images"), model)
    message: dict[str, Any] = {"role": fields.text("role").lower(), "content": fields.text("content")}
    for name in ("thinking", "tool_name", "tool_call_id"):
        if value := fields.text(name):
            message[name] = value
    if calls := [_call(call) for call in fields.objects("tool_calls")]:
        message["tool_calls"] = calls
    return message


def _call(fields: Fields) -> dict[str, Any]:
    function = Fields(fields.mapping("function"), "tool_calls.function.")
    shaped = {"name": function.text("name"), "arguments": parse_arguments(function)}
    return {"id": fields.text("id"), "type": "function", "function": shaped}


class GenerateFrames:
    """Objects that answer one ``/api/generate``."""

    def __init__(self, request: CompletionRequest) -> None:
        self._model = request.model

    def frame(self, event: Event) -> dict[str, Any]:
        """Return the object of one event."""
        head = {"model": self._model, "created_at": timestamp()}
        if isinstance(event, Done):
            return {**head, "response": "", **_end(event)}
        body: dict[str, Any] = {**head, "response": event.content}
        if event.thinking:
            body["thinking"] = event.thinking
        body["done"] = False
        if event.tool_calls:
            body["tool_calls"] = [tool_call(call) for call in event.tool_calls]
        return body | _logprobs(event)

    def whole(self, delta: Delta, done: Done) -> dict[str, Any]:
        """Return the single object of an answer that was not streamed."""
        return _merged(self.frame(delta), self.frame(done), "response")

    def rendered(self, text: str) -> dict[str, Any]:
        """Return the object that shows the prompt instead of running it."""
        return self.frame(Delta()) | {"_debug_info": {"rendered_template": text}}


class ChatFrames:
    """Objects that answer one ``/api/chat``."""

    def __init__(self, request: CompletionRequest) -> None:
        self._model = request.model

    def frame(self, event: Event) -> dict[str, Any]:
        """Return the object of one event."""
        head = {"model": self._model, "created_at": timestamp()}
        if isinstance(event, Done):
            return {**head, "message": {"role": "assistant", "content": ""}, **_end(event)}
        message: dict[str, Any] = {"role": "assistant", "content": event.content}
        if event.thinking:
            message["thinking"] = event.thinking
        if event.tool_calls:
            message["tool_calls"] = [tool_call(call) for call in event.tool_calls]
        return {**head, "message": message, "done": False, **_logprobs(event)}

    def whole(self, delta: Delta, done: Done) -> dict[str, Any]:
        """Return the single object of an answer that was not streamed."""
        return _merged(self.frame(delta), self.frame(done), "message")

    def rendered(self, text: str) -> dict[str, Any]:
        """Return the object that shows the prompt instead of running it."""
        return self.frame(Delta()) | {"_debug_info": {"rendered_template": text}}


def _merged(texts: dict[str, Any], end: dict[str, Any], key: str) -> dict[str, Any]:
    """Put the texts of an answer into its last object, in the order of the fields on the wire."""
    body = {name: value for name, value in texts.items() if name not in ("done", "tool_calls", "logprobs")}
    body |= {name: value for name, value in end.items() if name not in ("model", "created_at", key)}
    return body | {name: texts[name] for name in ("tool_calls", "logprobs") if name in texts}


def tool_call(call: ToolCall) -> dict[str, Any]:
    """Return a tool call in Ollama's form: arguments are an object."""
    return {"id": call.id, "function": {"index": call.idx, "name": call.name, "arguments": call.arguments}}


def _logprobs(delta: Delta) -> dict[str, Any]:
    return {"logprobs": list(map(logprob, delta.logprobs))} if delta.logprobs else {}


def logprob(entry: Logprob) -> dict[str, Any]:
    """Return one token's logprob entry; OpenAI's has the same fields."""
    body = _token(entry)
    return body | {"top_logprobs": list(map(_token, entry.top))} if entry.top else body


def _token(entry: Logprob) -> dict[str, Any]:
    return {"token": entry.token, "logprob": entry.logprob, "bytes": list(entry.data)}


def _end(done: Done) -> dict[str, Any]:
    body: dict[str, Any] = {"done": True, "done_reason": done.reason}
    if done.context is not None:
        body["context"] = list(done.context)
    return body | nonzero(
        total_duration=done.total_ns,
        load_duration=done.load_ns,
        prompt_eval_count=done.prompt_tokens,
        prompt_eval_duration=done.prompt_ns,
        eval_count=done.output_tokens,
        eval_duration=done.output_ns,
        **done.cuts,
    )


def nonzero(**fields: int) -> dict[str, int]:
    """Return the fields that are not zero."""
    return {name: value for name, value in fields.items() if value}


def collect(events: Iterable[Event]) -> tuple[Delta, Done]:
    """Join the deltas of an answer into one."""
    deltas: list[Delta] = []
    done = Done(reason="stop")
    for event in events:
        if isinstance(event, Done):
            done = event
        else:
            deltas.append(event)
    joined = Delta(
        content="".join(delta.content for delta in deltas),
        thinking="".join(delta.thinking for delta in deltas),
        tool_calls=[call for delta in deltas for call in delta.tool_calls],
        logprobs=[entry for delta in deltas for entry in delta.logprobs],
    )
    return joined, done
