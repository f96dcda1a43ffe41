"""Anthropic's answers: one message object, or named events that build the same one block by block.

message_start ─▶ (content_block_start ─▶ content_block_delta … ─▶ content_block_stop) … ─▶ message_delta
─▶ message_stop

Tokens found in the prefix cache are not input tokens here: they have a field of their own.
"""

import secrets
from collections.abc import Iterator
from typing import Any, Literal

from ftd.api.jsontext import encode
from ftd.api.request import CompletionRequest, Delta, Done, Event, ToolCall

Block = Literal["text", "thinking"]
_FIELD_OF_DELTA: dict[Block, str] = {"text": "text_delta", "thinking": "thinking_delta"}


class MessageFrames:
    """Objects that answer one ``/v1/messages``."""

    def __init__(self, request: CompletionRequest) -> None:
        self._head = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": request.model,
        }
        self._stops = request.options.get("stop", ())
        self._prompt_tokens = 0
        self._has_begun = False
        self._has_calls = False
        self._open: Block | None = None
        self._num_blocks = 0

    def begin(self, prompt_tokens: int) -> None:
        """Take the length of the prompt, which the first event of a stream tells."""
        self._prompt_tokens = prompt_tokens

    def events(self, event: Event) -> Iterator[dict[str, Any]]:
        """Yield the events of one event of ours; their names are their ``type``."""
        if not self._has_begun:
            self._has_begun = True
            usage = _usage(self._prompt_tokens, 0, 0)
            message: dict[str, Any] = {
                **self._head,
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
                "usage": usage,
            }
            yield {"type": "message_start", "message": message}
        if isinstance(event, Done):
            yield from self._close()
            yield {
                "type": "message_delta",
                "delta": self._stop(event, self._has_calls),
                "usage": usage_of(event),
            }
            yield {"type": "message_stop"}
            return
        if event.is_empty:
            yield {"type": "ping"}
        if event.thinking:
            yield from self._grow("thinking", event.thinking)
        if event.content:
            yield from self._grow("text", event.content)
        for call in event.tool_calls:
            yield from self._call(call)

    def _grow(self, kind: Block, text: str) -> Iterator[dict[str, Any]]:
        if self._open != kind:
            yield from self._close()
            self._open = kind
            yield self._start(_block(kind, ""))
        delta = {"type": _FIELD_OF_DELTA[kind], kind: text}
        yield {"type": "content_block_delta", "index": self._num_blocks - 1, "delta": delta}

    def _call(self, call: ToolCall) -> Iterator[dict[str, Any]]:
        yield from self._close()
        self._has_calls = True
        yield self._start(_call(call) | {"input": {}})
        partial = encode(call.arguments).decode("ascii")
        delta = {"type": "input_json_delta", "partial_json": partial}
        index = self._num_blocks - 1
        yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}

    def _start(self, block: dict[str, Any]) -> dict[str, Any]:
        self._num_blocks += 1
        return {"type": "content_block_start", "index": self._num_blocks - 1, "content_block": block}

    def _close(self) -> Iterator[dict[str, Any]]:
        if self._open is not None:
            self._open = None
            yield {"type": "content_block_stop", "index": self._num_blocks - 1}

    def _stop(self, done: Done, has_calls: bool) -> dict[str, Any]:
        """Return why the answer ended; a stop string counts as such when the client named it."""
        if has_calls and done.reason == "stop":
            return {"stop_reason": "tool_use", "stop_sequence": None}
        if done.stop and done.stop in self._stops:
            return {"stop_reason": "stop_sequence", "stop_sequence": done.stop}
        reason = "max_tokens" if done.reason == "length" else "end_turn"
        return {"stop_reason": reason, "stop_sequence": None}

    def whole(self, delta: Delta, done: Done) -> dict[str, Any]:
        """Return the single object of an answer that was not streamed."""
        content = []
        if delta.thinking:
            content.append(_block("thinking", delta.thinking))
        if delta.content:
            content.append(_block("text", delta.content))
        content += map(_call, delta.tool_calls)
        stop = self._stop(done, bool(delta.tool_calls))
        return {**self._head, "content": content, **stop, "usage": usage_of(done)}


def _block(kind: Block, text: str) -> dict[str, Any]:
    return {"type": kind, kind: text} | ({"signature": ""} if kind == "thinking" else {})


def _call(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}


def usage_of(done: Done) -> dict[str, int]:
    """Return the token counts of an answer."""
    return _usage(done.prompt_tokens - done.cached_tokens, done.cached_tokens, done.output_tokens) | done.cuts


def _usage(input_tokens: int, cached_tokens: int, output_tokens: int) -> dict[str, int]:
    return {
        "input_tokens": input_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached_tokens,
        "output_tokens": output_tokens,
    }
