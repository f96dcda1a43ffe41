"""Answers of OpenAI's ``/v1/responses``: one object, or named and numbered events that build the same one.

response.created ─▶ response.in_progress ─▶ (output_item.added ─▶ deltas ─▶ output_item.done) …
─▶ response.completed, or response.incomplete when the answer was cut short
"""

import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from ftd.api import api_errors
from ftd.api.jsontext import Fields
from ftd.api.ollama import logprob
from ftd.api.openai import tool_call
from ftd.api.request import CompletionRequest, Delta, Done, Event, Logprob, ToolCall
from ftd.errors import FtdError

Item = dict[str, Any]
Part = Literal["reasoning", "message"]


class ResponseFrames:
    """Objects that answer one ``/v1/responses``; ``fields`` is the body, parts of which are said back."""

    def __init__(self, request: CompletionRequest, fields: Fields) -> None:
        self._head = _head(request, fields)
        self._number = 0
        self._has_begun = False
        self._open: Item | None = None
        self._texts: list[str] = []
        self._logprobs: list[Logprob] = []
        self._output: list[Item] = []

    def events(self, event: Event) -> Iterator[dict[str, Any]]:
        """Yield the events of one event of ours; their names are their ``type``."""
        if not self._has_begun:
            self._has_begun = True
            yield self._event("response.created", response=self._response("in_progress", []))
            yield self._event("response.in_progress", response=self._response("in_progress", []))
        if isinstance(event, Done):
            if not self._output and self._open is None:
                yield from self._begin("message")
            yield from self._end()
            response = self._finished(event, self._output)
            yield self._event(f"response.{response['status']}", response=response)
            return
        if event.is_empty:
            yield self._event("response.in_progress", response=self._response("in_progress", []))
        if event.thinking:
            yield from self._grow("reasoning", event.thinking, ())
        if event.content or event.logprobs:
            yield from self._grow("message", event.content, event.logprobs)
        for call in event.tool_calls:
            yield from self._call(call)

    def failed(self, exc: FtdError) -> list[dict[str, Any]]:
        """Return the events that tell of a failure after the answer began."""
        error = api_errors.render(exc, "openai")["error"]
        reason = {"code": error["code"] or "server_error", "message": error["message"]}
        response = self._response("failed", self._output) | {"error": reason}
        return [
            self._event("response.failed", response=response),
            self._event("error", **reason, param=None, error=error),
        ]

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **fields}

    def _begin(self, part: Part) -> Iterator[dict[str, Any]]:
        if part == "reasoning":
            self._open = {"id": _id("rs"), "type": "reasoning", "summary": []}
        else:
            self._open = {**_message("", ()), "status": "in_progress", "content": []}
        self._texts, self._logprobs = [], []
        index = len(self._output)
        yield self._event("response.output_item.added", output_index=index, item=self._open)
        if part == "message":
            yield self._event("response.content_part.added", **self._where(), part=_text("", ()))

    def _where(self) -> dict[str, Any]:
        assert self._open is not None
        kind = "content_index" if self._open["type"] == "message" else "summary_index"
        return {"item_id": self._open["id"], "output_index": len(self._output), kind: 0}

    def _grow(self, part: Part, text: str, logprobs: Sequence[Logprob]) -> Iterator[dict[str, Any]]:
        if self._open is None or self._open["type"] != part:
            yield from self._end()
            yield from self._begin(part)
        self._texts.append(text)
        self._logprobs += logprobs
        if part == "reasoning":
            yield self._event("response.reasoning_summary_text.delta", **self._where(), delta=text)
        else:
            shown = list(map(logprob, logprobs))
            yield self._event("response.output_text.delta", **self._where(), delta=text, logprobs=shown)

    def _end(self) -> Iterator[dict[str, Any]]:
        """Yield what ends the open item, if there is one."""
        if self._open is None:
            return
        where, text, item_id = self._where(), "".join(self._texts), self._open["id"]
        if self._open["type"] == "reasoning":
            item = _reasoning(text) | {"id": item_id}
            yield self._event("response.reasoning_summary_text.done", **where, text=text)
        else:
            item = _message(text, self._logprobs) | {"id": item_id}
            part = item["content"][0]
            shown = part["logprobs"]
            yield self._event("response.output_text.done", **where, text=text, logprobs=shown)
            yield self._event("response.content_part.done", **where, part=part)
        yield self._event("response.output_item.done", output_index=len(self._output), item=item)
        self._output.append(item)
        self._open = None

    def _call(self, call: ToolCall) -> Iterator[dict[str, Any]]:
        yield from self._end()
        item, index = _function_call(call), len(self._output)
        arguments = item["arguments"]
        begun = item | {"status": "in_progress", "arguments": ""}
        where = {"item_id": item["id"], "output_index": index}
        yield self._event("response.output_item.added", output_index=index, item=begun)
        yield self._event("response.function_call_arguments.delta", **where, delta=arguments)
        yield self._event(
            "response.function_call_arguments.done", **where, name=call.name, arguments=arguments
        )
        yield self._event("response.output_item.done", output_index=index, item=item)
        self._output.append(item)

    def whole(self, delta: Delta, done: Done) -> dict[str, Any]:
        """Return the single object of an answer that was not streamed."""
        output = [_reasoning(delta.thinking)] if delta.thinking else []
        if delta.content or not (delta.thinking or delta.tool_calls):
            output.append(_message(delta.content, delta.logprobs))
        self._output = [*output, *map(_function_call, delta.tool_calls)]
        return self._finished(done, self._output)

    @property
    def output(self) -> Sequence[Item]:
        """The items that are finished."""
        return self._output

    def _finished(self, done: Done, output: list[Item]) -> dict[str, Any]:
        if done.reason == "length":
            details = {"incomplete_details": {"reason": "max_output_tokens"}}
            response = self._response("incomplete", output) | details
        else:
            response = self._response("completed", output) | {"completed_at": int(time.time())}
        return response | {"usage": _usage(done)}

    def _response(self, status: str, output: list[Item]) -> dict[str, Any]:
        return self._head | {"status": status, "output": list(output)}


def _head(request: CompletionRequest, fields: Fields) -> dict[str, Any]:
    """Return every key of a response, with what the request says."""
    reasoning = fields.mapping("reasoning")
    return {
        "id": _id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "",
        "incomplete_details": None,
        "model": request.model,
        "previous_response_id": None,
        "instructions": fields.text("instructions") or None,
        "output": [],
        "error": None,
        "tools": fields.items("tools"),
        "tool_choice": fields.get("tool_choice") or "auto",
        "truncation": "auto" if request.truncate else "disabled",
        "parallel_tool_calls": request.tool_choice.is_parallel,
        "text": {"format": fields.mapping("text").get("format") or {"type": "text"}},
        "top_p": request.options.get("top_p", 1),
        "presence_penalty": 0,
        "frequency_penalty": 0,
        "top_logprobs": max(request.num_logprobs, 0),
        "temperature": request.options.get("temperature", 1),
        "reasoning": {key: reasoning.get(key) for key in ("effort", "summary")} if reasoning else None,
        "usage": None,
        "max_output_tokens": fields.integer("max_output_tokens"),
        "max_tool_calls": None,
        "store": False,
        "background": False,
        "service_tier": "default",
        "metadata": fields.mapping("metadata"),
        "safety_identifier": None,
        "prompt_cache_key": fields.text("prompt_cache_key") or None,
    }


def _id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(12)}"


def _reasoning(text: str) -> Item:
    summary = [{"type": "summary_text", "text": text}]
    return {"id": _id("rs"), "type": "reasoning", "summary": summary, "encrypted_content": text}


def _message(text: str, logprobs: Sequence[Logprob]) -> Item:
    content = [_text(text, logprobs)]
    status, role = "completed", "assistant"
    return {"id": _id("msg"), "type": "message", "status": status, "role": role, "content": content}


def _text(text: str, logprobs: Sequence[Logprob]) -> Item:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(map(logprob, logprobs))}


def _function_call(call: ToolCall) -> Item:
    function = tool_call(call)["function"]
    head = {"id": _id("fc"), "type": "function_call", "status": "completed", "call_id": call.id}
    return {**head, "name": function["name"], "arguments": function["arguments"]}


def _usage(done: Done) -> dict[str, Any]:
    return {
        "input_tokens": done.prompt_tokens,
        "output_tokens": done.output_tokens,
        "total_tokens": done.prompt_tokens + done.output_tokens,
        "input_tokens_details": {"cached_tokens": done.cached_tokens},
        "output_tokens_details": {"reasoning_tokens": 0},
        **done.cuts,
    }
