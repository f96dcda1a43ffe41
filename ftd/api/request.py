"""The one internal request and the events that answer it; every API is a framing of these.

wire body ── parse ──▶ CompletionRequest ── daemon ──▶ Delta, Delta, …, Done ── frame ──▶ wire lines
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ftd import units
from ftd.api.jsontext import Fields
from ftd.chat.callgrammar import FREE_CHOICE, ToolChoice
from ftd.chat.schema import Format
from ftd.errors import InvalidOption, InvalidRequest, Unsupported

THINK_LEVELS = ("high", "medium", "low", "max")
MAX_TOP_LOGPROBS = 20

Think = bool | str | None
Message = Mapping[str, Any]


class CompletionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request for text. ``messages`` is None for a plain prompt; then ``prompt`` and its fields count.

    model: as the client wrote it. keep_alive_ns: None leaves what is set. template, system: None inherits.
    num_logprobs: -1 none, 0 the chosen token only, n the n best too. truncate False refuses a long prompt.
    is_think_optional: a model that cannot think then just does not; otherwise the request is refused.
    format: what the answer must be, ``"json"`` or a JSON schema; None leaves it free.
    shift: whether the oldest ids may leave a full window while the answer grows; None leaves it to us (no).
    """

    model: str
    stream: bool = True
    options: Mapping[str, Any] = {}
    keep_alive_ns: int | None = None
    think: Think = None
    is_think_optional: bool = False
    format: Format | None = None
    num_logprobs: int = -1
    truncate: bool = True
    shift: bool | None = None
    render_only: bool = False
    messages: Sequence[Message] | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: ToolChoice = FREE_CHOICE
    prompt: str = ""
    suffix: str = ""
    system: str = ""
    template: str = ""
    context: Sequence[int] = ()
    raw: bool = False

    @property
    def is_chat(self) -> bool:
        """True for a conversation, False for a prompt."""
        return self.messages is not None

    @property
    def is_empty(self) -> bool:
        """True when there is nothing to answer: the request only loads, or unloads, the model."""
        return not self.messages if self.is_chat else not self.prompt


class Logprob(msgspec.Struct, frozen=True):
    """A token, its exact bytes, the natural logarithm of its probability, and the best, descending."""

    token: str
    data: bytes
    logprob: float
    top: Sequence["Logprob"] = ()


class ToolCall(msgspec.Struct, frozen=True):
    """One call the model makes; ``idx`` counts within the answer."""

    id: str
    idx: int
    name: str
    arguments: Mapping[str, Any]


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """What one message of the engine adds to the answer."""

    content: str = ""
    thinking: str = ""
    tool_calls: Sequence[ToolCall] = ()
    logprobs: Sequence[Logprob] = ()

    @property
    def is_empty(self) -> bool:
        """True when a client would learn nothing from it."""
        return not (self.content or self.thinking or self.tool_calls or self.logprobs)


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """The end of an answer: why, and what it took.

    reason: stop, length, load or unload. stop: the stop string that ended it, if one did.
    context: the ids of prompt and answer, None when not wanted.
    truncated_messages, truncated_tokens: what was left out of the prompt to make it fit. shifted_tokens: how
    many ids left the window while the answer grew.
    """

    reason: str
    stop: str = ""
    total_ns: int = 0
    load_ns: int = 0
    prompt_tokens: int = 0
    prompt_ns: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    output_ns: int = 0
    context: Sequence[int] | None = None
    truncated_messages: int = 0
    truncated_tokens: int = 0
    shifted_tokens: int = 0

    @property
    def cuts(self) -> dict[str, int]:
        """What was left out on the way, as every API says it; empty if nothing was."""
        fields = {
            "truncated_messages": self.truncated_messages,
            "truncated_tokens": self.truncated_tokens,
            "shifted_tokens": self.shifted_tokens,
        }
        return {name: value for name, value in fields.items() if value}


Event = Delta | Done


def parse_think(value: object) -> Think:
    """Return the ``think`` field of a request: absent, a truth, or an effort."""
    if value is None or isinstance(value, bool):
        return value
    accepted = '"high", "medium", "low", "max", true, or false'
    if not isinstance(value, str):
        raise InvalidRequest(f"think must be a boolean or string ({accepted})")
    if value not in THINK_LEVELS:
        raise InvalidRequest(f'invalid think value: "{value:.50}" (must be {accepted})')
    return value


def parse_logprobs(fields: Fields) -> int:
    """Return ``num_logprobs`` from the fields ``logprobs`` and ``top_logprobs``."""
    top = fields.integer("top_logprobs") or 0
    if not 0 <= top <= MAX_TOP_LOGPROBS:
        raise InvalidRequest(f"top_logprobs must be between 0 and {MAX_TOP_LOGPROBS}")
    return top if fields.flag("logprobs") else -1


def parse_keep_alive(fields: Fields) -> int | None:
    """Return the ``keep_alive`` field in nanoseconds, None when absent."""
    return units.parse_keep_alive(fields.get("keep_alive"))


def parse_format(value: object) -> Format | None:
    """Return the ``format`` field: absent, ``"json"`` or a JSON schema, which is looked at later."""
    if value in (None, ""):
        return None
    if value == "json":
        return "json"
    if not isinstance(value, dict):
        shown = json.dumps(value)[:100]
        raise InvalidOption(f'invalid format: {shown}; expected "json" or a valid JSON Schema object')
    return value


def parse_schema(fields: Fields) -> Format:
    """Return the JSON schema of an object that has one in its field ``schema``."""
    schema = fields.get("schema")
    if not isinstance(schema, dict):
        raise fields.wrong("schema", schema, "object")
    return schema


def parse_arguments(function: Fields) -> Mapping[str, Any]:
    """Return the arguments of a call of an earlier answer: clients send an object, or the text of one."""
    value = function.get("arguments")
    if isinstance(value, dict):
        return value
    text = function.text("arguments")
    try:
        arguments = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise InvalidRequest(
            f"invalid tool call arguments: {text[:60]!r} is no JSON object",
            "send the arguments as the answer had them, or {}",
        )
    return arguments


def refuse_images(images: Sequence[object], model: str) -> None:
    """Refuse pictures: no model here can see."""
    if images:
        raise Unsupported(f'"{model}" does not support images', "remove images from the request")
