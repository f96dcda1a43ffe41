"""Messages in the one shape that templates get, and ways to bend a conversation that a template refuses.

    {"role", "content": str, "reasoning_content" and "thinking"?, "name"?, "tool_call_id"?,
     "tool_calls"?: [{"id", "type": "function", "function": {"name", "arguments": dict}}]}

Clients leave out ids and names; here every call has an id, every tool message the id and name of its call.
"""

import itertools
import json
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any

from ftd.errors import InvalidRequest

# Roles are not user text: these words are trusted, any other is treated as if a user had written it
ROLES = frozenset(("system", "developer", "user", "assistant", "tool", "ipython", "function", "context"))
Message = dict[str, Any]


def prepare(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Return messages in the shape above; raise InvalidRequest if one is none."""
    prepared: list[Message] = []
    open_calls = _OpenCalls()
    num_calls = 0
    for message in messages:
        role = message.get("role")
        if not isinstance(role, str):
            raise InvalidRequest(f"message role must be a string: {role!r:.80}")
        known = role.lower()
        shaped: Message = {
            "role": known if known in ROLES else role,
            "content": text_of(message.get("content")),
        }
        _copy_thinking(message, shaped)
        if calls := message.get("tool_calls"):
            shaped["tool_calls"] = [_call(call, num_calls + idx) for idx, call in enumerate(calls)]
            num_calls += len(calls)
            for call in shaped["tool_calls"]:
                open_calls.add(call["id"], call["function"]["name"])
        if shaped["role"] in ("tool", "function", "ipython"):
            _name_result(message, shaped, open_calls)
        elif isinstance(name := message.get("name"), str):
            shaped["name"] = name
        prepared.append(shaped)
    return prepared


def text_of(content: Any) -> str:
    """Return content as text: null is empty, the text parts of a list are joined."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
        return "".join(part for part in parts if isinstance(part, str))
    raise InvalidRequest(f"message content must be a string or a list of parts: {content!r:.80}")


def _copy_thinking(message: Mapping[str, Any], shaped: Message) -> None:
    for key in ("thinking", "reasoning_content", "reasoning"):
        thinking = message.get(key)
        if isinstance(thinking, str) and thinking:
            # one for Qwen, DeepSeek and GLM, the other for gpt-oss and Go templates
            shaped["reasoning_content"] = shaped["thinking"] = thinking
            return


def _call(call: Any, idx: int) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidRequest(f"tool call needs a function with a name: {call!r:.100}")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError) as exc:
            raise InvalidRequest(f"tool call arguments are not JSON: {arguments:.100}") from exc
    if not isinstance(arguments, Mapping | None):
        raise InvalidRequest(f"tool call arguments must be an object: {arguments!r:.100}")
    call_id = call.get("id")
    return {
        # nine letters and digits: what the strictest templates accept, and equal for equal histories
        "id": call_id if isinstance(call_id, str) and call_id else f"call{idx:05d}",
        "type": "function",
        "function": {"name": function["name"], "arguments": dict(arguments or {})},
    }


class _OpenCalls:
    """Calls that no tool message has answered, oldest first."""

    def __init__(self) -> None:
        self._calls: dict[int, tuple[str, str]] = {}  # number -> id, name
        self._numbers = itertools.count()
        self._by_id: defaultdict[str, deque[int]] = defaultdict(deque)
        self._by_name: defaultdict[str, deque[int]] = defaultdict(deque)
        self._all: deque[int] = deque()

    def add(self, call_id: str, name: str) -> None:
        number = next(self._numbers)
        self._calls[number] = call_id, name
        for numbers in (self._by_id[call_id], self._by_name[name], self._all):
            numbers.append(number)

    def take(self, call_id: Any, name: Any) -> tuple[str, str] | None:
        """Return id and name of the call that a result is of: by its id, or its name, or the oldest."""
        if call_id:
            return self._first(self._by_id, call_id)
        found = self._first(self._by_name, name)
        return found or self._oldest(self._all)

    def _first(self, index: Mapping[str, deque[int]], key: Any) -> tuple[str, str] | None:
        return self._oldest(index[key]) if isinstance(key, str) and key in index else None

    def _oldest(self, numbers: deque[int]) -> tuple[str, str] | None:
        while numbers:
            if found := self._calls.pop(numbers.popleft(), None):
                return found
        return None


def _name_result(message: Mapping[str, Any], shaped: Message, open_calls: _OpenCalls) -> None:
    call_id, name = message.get("tool_call_id"), message.get("tool_name") or message.get("name")
    if found := open_calls.take(call_id, name):
        call_id, name = call_id or found[0], name or found[1]
    if isinstance(call_id, str) and call_id:
        shaped["tool_call_id"] = call_id
    if isinstance(name, str) and name:
        shaped["name"] = name


def developer_as_system(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with role ``developer`` called ``system``."""
    return [m | {"role": "system"} if m["role"] == "developer" else m for m in messages]


def system_first(messages: Sequence[Message]) -> list[Message]:
    """Merge all system and developer messages into one at the front."""
    texts = [m["content"] for m in messages if m["role"] in ("system", "developer") and m["content"]]
    rest = [m for m in messages if m["role"] not in ("system", "developer")]
    return [{"role": "system", "content": "\n\n".join(texts)}, *rest] if texts else rest


def system_into_user(messages: Sequence[Message]) -> list[Message]:
    """Put the text of all system messages in front of the first user message."""
    head, *rest = system_first(messages) or [{"role": "user", "content": ""}]
    if head["role"] != "system":
        return [head, *rest]
    for idx, message in enumerate(rest):
        if message["role"] == "user":
            texts = filter(None, (head["content"], message["content"]))
            return [*rest[:idx], message | {"content": "\n\n".join(texts)}, *rest[idx + 1 :]]
    return [{"role": "user", "content": head["content"]}, *rest]


def tools_as_text(messages: Sequence[Message]) -> list[Message]:
    """Write tool calls into the text of their messages, and tool results as user messages."""
    changed: list[Message] = []
    for message in messages:
        if message["role"] in ("tool", "function", "ipython"):
            name = message.get("name", "")
            label = f"Result of {name}:\n" if name else ""
            changed.append({"role": "user", "content": label + message["content"]})
        elif calls := message.get("tool_calls"):
            lines = [json.dumps(call["function"], ensure_ascii=False) for call in calls]
            kept = {key: value for key, value in message.items() if key != "tool_calls"}
            changed.append(kept | {"content": "\n".join(filter(None, (message["content"], *lines)))})
        else:
            changed.append(message)
    return changed


def alternating(messages: Sequence[Message]) -> list[Message]:
    """Merge neighbours of one role, and start (after the system message) with a user."""
    groups: list[tuple[Message, list[str]]] = []  # the first message of some, and the texts of all
    for message in messages:
        last = groups[-1][0] if groups else None
        plain = not (message.get("tool_calls") or (last and last.get("tool_calls")))
        if last and last["role"] == message["role"] and message["role"] in ("user", "assistant") and plain:
            groups[-1][1].append(message["content"])
        else:
            groups.append((message, [message["content"]]))
    merged = [
        first | {"content": "\n\n".join(filter(None, texts))} if len(texts) > 1 else first
        for first, texts in groups
    ]
    start = next((i for i, m in enumerate(merged) if m["role"] != "system"), len(merged))
    if start == len(merged) or merged[start]["role"] != "user":
        merged.insert(start, {"role": "user", "content": ""})
    return merged


def short_ids(messages: Sequence[Message]) -> list[Message]:
    """Give every tool call an id of nine letters and digits, the same for call and result."""
    new_ids: dict[str, str] = {}
    changed: list[Message] = []
    for message in messages:
        copy = dict(message)
        if calls := message.get("tool_calls"):
            copy["tool_calls"] = [
                call | {"id": new_ids.setdefault(call["id"], f"call{len(new_ids):05d}")} for call in calls
            ]
        if call_id := message.get("tool_call_id"):
            copy["tool_call_id"] = new_ids.setdefault(call_id, f"call{len(new_ids):05d}")
        changed.append(copy)
    return changed
