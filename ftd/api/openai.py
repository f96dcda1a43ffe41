"""OpenAI's chat and text completions: bodies to the internal request, events to objects and SSE chunks.

Ollama's own fields (``options``, ``num_ctx``, ``keep_alive``, ``think``) are honoured here too. A field
that would change the answer and is not supported is refused, not dropped.
"""

import itertools
import json
import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any

from ftd import log
from ftd.api import toolchoice
from ftd.api.jsontext import Fields, kind_of
from ftd.api.ollama import logprob
from ftd.api.request import (
    CompletionRequest,
    Delta,
    Done,
    Event,
    Message,
    Think,
    ToolCall,
    parse_arguments,
    parse_format,
    parse_keep_alive,
    parse_logprobs,
    parse_schema,
    parse_think,
)
from ftd.chat.schema import Format
from ftd.errors import InvalidRequest, Unsupported

_log = logging.getLogger(__name__)

_EFFORTS: dict[str, Think] = {
    "none": False,
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "max": "max",
    "xhigh": "max",
    "ultra": "max",
}
_SAMPLING = ("temperature", "top_p", "frequency_penalty", "presence_penalty")
# OpenAI's defaults where the client says nothing; Ollama's own differ
_DEFAULTS = {"temperature": 1.0, "top_p": 1.0}
_ids = itertools.count()


def parse_chat(fields: Fields) -> CompletionRequest:
    """Return the request of a ``/v1/chat/completions`` body; raise InvalidRequest."""
    model = _model(fields)
    raw_messages = list(fields.objects("messages"))
    if not raw_messages:
        raise InvalidRequest("[] is too short - 'messages'")
    _refuse_unsupported(fields)
    if fields.get("functions"):
        raise Unsupported("not supported: functions", "send them as tools")
    if "audio" in fields.strings("modalities"):
        raise Unsupported("not supported: modalities audio", "ask for text")
    tools, choice = toolchoice.parse_openai(fields, _tools(fields))
    return CompletionRequest(
        model=model,
        stream=fields.flag("stream"),
        options=_options(fields),
        keep_alive_ns=parse_keep_alive(fields),
        think=_think(fields),
        format=_format(fields),
        num_logprobs=parse_logprobs(fields),
        truncate=fields.flag("truncate", False),
        shift=None if fields.get("shift") is None else fields.flag("shift"),
        messages=list(_messages(raw_messages)),
        tools=tools,
        tool_choice=choice,
    )


def _tools(fields: Fields) -> list[Mapping[str, Any]]:
    """Return the functions among the tools; other kinds only OpenAI's servers can run."""
    found: list[Mapping[str, Any]] = []
    for tool in fields.objects("tools"):
        if tool.text("type") in ("", "function"):
            found.append(tool.values)
        else:
            _log.warning(log.fields("tool left out", type=tool.text("type")[:40]))
    return found


def parse_completion(fields: Fields) -> CompletionRequest:
    """Return the request of a ``/v1/completions`` body; raise InvalidRequest."""
    model = _model(fields)
    _refuse_unsupported(fields)
    if fields.flag("echo"):
        raise Unsupported("not supported: echo", "put the prompt in front of the answer yourself")
    if (fields.integer("best_of") or 1) != 1:
        raise Unsupported("not supported: best_of", "leave best_of out")
    num_logprobs = fields.integer("logprobs")
    if num_logprobs is not None and not 0 <= num_logprobs <= 20:
        raise InvalidRequest(f"logprobs must be between 0 and 20: {num_logprobs}")
    return CompletionRequest(
        model=model,
        stream=fields.flag("stream"),
        options=_options(fields),
        keep_alive_ns=parse_keep_alive(fields),
        think=_think(fields),
        format=_format(fields),
        num_logprobs=-1 if num_logprobs is None else num_logprobs,
        truncate=fields.flag("truncate", False),
        shift=None if fields.get("shift") is None else fields.flag("shift"),
        prompt=_prompt(fields),
        suffix=fields.text("suffix"),
    )


def _prompt(fields: Fields) -> str:
    """Return the prompt, which some clients (LangChain's) send as a list of one."""
    prompt = fields.get("prompt")
    if not isinstance(prompt, list):
        return fields.text("prompt")
    texts = [part for part in prompt if isinstance(part, str)]
    if len(texts) < len(prompt):
        raise Unsupported("not supported: a prompt of token ids", "send the prompt as text")
    if len(texts) != 1:
        raise Unsupported(f"only one prompt is supported: {len(texts)}", "send a request for each prompt")
    return texts[0]


def _model(fields: Fields) -> str:
    model = fields.text("model")
    if not model:
        raise InvalidRequest("model is required")
    return model


def _refuse_unsupported(fields: Fields) -> None:
    if (fields.integer("n") or 1) != 1:
        raise Unsupported(f"only one choice is supported: n {fields.integer('n')}", "send the request again")
    if fields.mapping("logit_bias"):
        raise Unsupported("not supported: logit_bias", "leave logit_bias out")


def _options(fields: Fields) -> Mapping[str, Any]:
    options: dict[str, Any] = dict(_DEFAULTS)
    options |= fields.mapping("options")
    for name in _SAMPLING:
        if (value := fields.number(name)) is not None:
            options[name] = value
    for name in ("seed", "num_ctx"):
        if (integer := fields.integer(name)) is not None:
            options[name] = integer
    for name in ("max_tokens", "max_completion_tokens"):
        if (limit := fields.integer(name)) is not None:
            options["num_predict"] = limit
    stop = fields.get("stop")
    if stop is not None:
        options["stop"] = [stop] if isinstance(stop, str) else fields.strings("stop")
    return options


def _think(fields: Fields) -> Think:
    effort = fields.get("reasoning_effort") or fields.mapping("reasoning").get("effort")
    if effort is not None:
        return parse_effort(effort)
    # The way of vLLM, SGLang and llama.cpp's server; a model that can think does unless told not to
    is_off = fields.mapping("chat_template_kwargs").get("enable_thinking") is False
    return False if is_off else parse_think(fields.get("think"))


def parse_effort(effort: object) -> Think:
    """Return the thinking that OpenAI's word for an effort asks for; None asks for nothing."""
    if effort is None:
        return None
    if not isinstance(effort, str) or effort not in _EFFORTS:
        raise InvalidRequest(f'invalid reasoning value: "{effort}" (must be {", ".join(_EFFORTS)})')
    return _EFFORTS[effort]


def _format(fields: Fields) -> Format | None:
    """Return what the answer must be: ``response_format``, or else Ollama's ``format``."""
    wanted = Fields(fields.mapping("response_format"), "response_format.")
    kind = wanted.text("type") or "text"
    has_schema = wanted.get("schema") is not None  # as other servers have it
    if kind == "json_object":
        return parse_schema(wanted) if has_schema else "json"
    if kind == "json_schema":
        wrapped = Fields(wanted.mapping("json_schema"), "response_format.json_schema.")
        return parse_schema(wanted if has_schema and not wrapped.values else wrapped)
    if kind != "text":
        raise InvalidRequest(
            f"invalid response_format type: {kind:.50} (must be text, json_object or json_schema)"
        )
    return parse_format(fields.get("format"))


def _messages(messages: list[Fields]) -> Iterator[Message]:
    """Yield messages in the native form: one text each, arguments as objects, tool results with names."""
    name_by_id: dict[str, str] = {}
    for fields in messages:
        message: dict[str, Any] = {"role": fields.text("role")}
        calls = [
            past_call(call.text("id"), Fields(call.mapping("function"), "tool_calls.function."))
            for call in fields.objects("tool_calls")
        ]
        if fields.get("function_call") is not None:  # of clients from before tools
            calls.append(past_call("", Fields(fields.mapping("function_call"), "function_call.")))
        content = fields.get("content")
        # What a model said without words (it only thought, or called) comes back as null
        is_silent = content is None and (calls or message["role"] in ("assistant", "tool"))
        message["content"] = "" if is_silent else _content(content)
        if thinking := fields.text("reasoning") or fields.text("reasoning_content"):
            message["thinking"] = thinking
        if calls:
            message["tool_calls"] = calls
            name_by_id |= {call["id"]: call["function"]["name"] for call in calls}
        call_id, name = fields.text("tool_call_id"), fields.text("name")
        if call_id:
            message["tool_call_id"] = call_id
        if message["role"] == "tool" and (name := name or name_by_id.get(call_id, "")):
            message["tool_name"] = name
        elif name:
            message["name"] = name
        yield message


def _content(content: object) -> str:
    """Return content as one text; parts of one message stand apart by a blank line, as neighbours do."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(f"invalid message content type: {kind_of(content)}")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else kind_of(part)
        if kind in ("image_url", "input_audio"):
            raise Unsupported(f"the model does not support this kind of content: {kind}", "send text only")
        if kind not in ("text", "refusal") or not isinstance(part.get(kind), str):
            raise InvalidRequest(
                f"invalid message format: a content part of type {kind!s:.40}", "send parts of type text"
            )
        texts.append(part[kind])
    return "\n\n".join(texts)


def past_call(call_id: str, function: Fields) -> dict[str, Any]:
    """Return a call of an earlier answer, of its name and arguments; raise InvalidRequest."""
    shaped = {"name": function.text("name"), "arguments": parse_arguments(function)}
    return {"id": call_id, "type": "function", "function": shaped}


def usage(done: Done) -> dict[str, Any]:
    """Return the token counts of an answer; the cached part is how much of the prompt was not computed."""
    return {
        "prompt_tokens": done.prompt_tokens,
        "completion_tokens": done.output_tokens,
        "total_tokens": done.prompt_tokens + done.output_tokens,
        "prompt_tokens_details": {"cached_tokens": done.cached_tokens},
        **done.cuts,
    }


class ChatFrames:
    """Objects and chunks that answer one ``/v1/chat/completions``."""

    def __init__(self, request: CompletionRequest, include_usage: bool) -> None:
        self._head = _head("chatcmpl", request.model)
        self._include_usage = include_usage
        self._has_begun = False
        self._has_calls = False

    def chunks(self, event: Event) -> Iterator[dict[str, Any]]:
        """Yield the chunks of one event."""
        if isinstance(event, Done):
            if not self._has_begun:
                yield self._chunk({"content": ""})
            reason = _finish_reason(event, self._has_calls)
            yield self._chunk({}, finish_reason=reason)
            if self._include_usage:
                yield {**self._stream_head(), "choices": [], "usage": usage(event)}
            return
        extra: dict[str, Any] = {}
        if event.logprobs:
            extra["logprobs"] = {"content": list(map(logprob, event.logprobs))}
        if event.thinking:
            yield self._chunk({"reasoning": event.thinking}, **extra)
            extra = {}
        if event.tool_calls:
            self._has_calls = True
            yield self._chunk({"content": event.content, "tool_calls": _calls(event)}, **extra)
        elif event.content or not event.thinking:
            yield self._chunk({"content": event.content}, **extra)

    def _stream_head(self) -> dict[str, Any]:
        return self._head | {"object": "chat.completion.chunk"}

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None, **extra: Any) -> dict[str, Any]:
        if not self._has_begun:
            delta, self._has_begun = {"role": "assistant", **delta}, True
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, **extra}
        return {**self._stream_head(), "choices": [choice]}

    def whole(self, delta: Delta, done: Done) -> dict[str, Any]:
        """Return the single object of an answer that was not streamed."""
        message: dict[str, Any] = {"role": "assistant", "content": delta.content}
        if delta.thinking:
            message["reasoning"] = delta.thinking
        if delta.tool_calls:
            message["tool_calls"] = _calls(delta)
        reason = _finish_reason(done, bool(delta.tool_calls))
        choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": reason}
        if delta.logprobs:
            choice["logprobs"] = {"content": list(map(logprob, delta.logprobs))}
        return {**self._head, "object": "chat.completion", "choices": [choice], "usage": usage(done)}


class CompletionFrames:
    """Objects and chunks that answer one ``/v1/completions``."""

    def __init__(self, request: CompletionRequest, include_usage: bool) -> None:
        self._head = _head("cmpl", request.model) | {"object": "text_completion"}
        self._include_usage = include_usage

    def chunks(self, event: Event) -> Iterator[dict[str, Any]]:
        """Yield the chunks of one event."""
        if isinstance(event, Delta):
            yield self._object(event, None)
            return
        yield self._object(Delta(), event.reason)
        if self._include_usage:
            yield {**self._head, "choices": [], "usage": usage(event)}

    def whole(self, delta: Delta, done: Done) -> dict[str, Any]:
        """Return the single object of an answer that was not streamed."""
        return self._object(delta, done.reason) | {"usage": usage(done)}

    def _object(self, delta: Delta, reason: str | None) -> dict[str, Any]:
        choice: dict[str, Any] = {"text": delta.content, "index": 0, "finish_reason": reason}
        if delta.logprobs:
            choice["logprobs"] = _text_logprobs(delta)
        return {**self._head, "choices": [choice]}


def _text_logprobs(delta: Delta) -> dict[str, Any]:
    return {
        "tokens": [entry.token for entry in delta.logprobs],
        "token_logprobs": [entry.logprob for entry in delta.logprobs],
        "top_logprobs": [{best.token: best.logprob for best in entry.top} for entry in delta.logprobs],
    }


def _head(prefix: str, model: str) -> dict[str, Any]:
    return {
        "id": f"{prefix}-{next(_ids)}",
        "object": "",
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": "fp_ollama",
    }


def _finish_reason(done: Done, has_calls: bool) -> str:
    return "tool_calls" if has_calls and done.reason == "stop" else done.reason


def _calls(delta: Delta) -> list[dict[str, Any]]:
    return list(map(tool_call, delta.tool_calls))


def tool_call(call: ToolCall) -> dict[str, Any]:
    """Return a tool call in OpenAI's form: arguments are a JSON text."""
    arguments = json.dumps(call.arguments, ensure_ascii=False, separators=(",", ":"))
    function = {"name": call.name, "arguments": arguments}
    return {"id": call.id, "index": call.idx, "type": "function", "function": function}


def wants_usage(fields: Fields) -> bool:
    """Say whether a stream shall end with the token counts."""
    return Fields(fields.mapping("stream_options"), "stream_options.").flag("include_usage")
