"""The output of gpt-oss: messages in channels, which are thinking, content and tool calls.

    <|channel|>analysis<|message|>…<|end|><|start|>assistant
    <|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}<|call|>
    <|channel|>final<|message|>…<|return|>

    header   up to <|message|>: who speaks, to whom, in which channel
    body     up to the next mark; analysis is thinking, a recipient makes it a call, the rest is content
    between  behind <|end|>: a new header, or text that is content

What is malformed becomes content. Linear, and the result does not depend on how the text was cut.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from ftd.chat.callbodies import ParsedCall, parse_values, schemas_of
from ftd.chat.output import Output
from ftd.chat.thinking import tail_len

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
_MARKS = (*ENDS, START, CHANNEL)
_MARK = re.compile("|".join(map(re.escape, _MARKS)))
_HEADER_MARKS = (MESSAGE, *_MARKS)
_HEADER_END = re.compile("|".join(map(re.escape, (MESSAGE, *ENDS, START))))
_RECIPIENT = re.compile(r"to=([^\s<]+)")
_CHANNEL_NAME = re.compile(r"<\|channel\|>\s*(\w+)")
MAX_HEADER_CHARS = 1000
MAX_CALL_CHARS = 8 << 20
Kind = Literal["thinking", "content", "call"]


class HarmonyParser:
    """One answer's parser; the prompt ended where a header begins. ``tools`` are the declared ones."""

    def __init__(self, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        self._names = list(schemas_of(tools))
        self._state: Literal["header", "body", "between"] = "header"
        self._kind: Kind = "content"
        self._name = ""
        self._held = ""
        self._call: list[str] = []
        self._call_len = 0

    def push(self, text: str) -> Output:
        """Return what ``text`` completes."""
        output = Output()
        rest = self._held + text
        self._held = ""
        while rest:
            if self._state == "header":
                rest = self._header(rest, output)
            elif self._state == "body":
                rest = self._body(rest, output)
            else:
                rest = self._between(rest)
        return output

    def flush(self) -> Output:
        """Return what was held back, at the end of the answer."""
        output = Output()
        if self._state == "body":
            self._add(self._held, output)
            self._finish(output, is_whole=False)
        elif self._state == "header" and "<|" not in self._held:
            output.content += self._held
        self._held = ""
        return output

    def _header(self, text: str, output: Output) -> str:
        """Read up to the mark that begins the body; what cannot be a header is content."""
        found = _HEADER_END.search(text, len(CHANNEL) if text.startswith(CHANNEL) else 0)
        head = text[: found.start()] if found else text[: len(text) - max(map(tail_of(text), _HEADER_MARKS))]
        if not _may_be_header(head) or len(head) > MAX_HEADER_CHARS:
            self._open("content", "")
            return text
        if found is None:
            self._held = text
            return ""
        if found[0] != MESSAGE:
            self._open("content", "")
            self._add(head, output)
            return text[found.start() :]
        recipient, channel = _RECIPIENT.search(head), _CHANNEL_NAME.search(head)
        if recipient and recipient[1] not in ("user", "assistant", "all"):
            self._open("call", self._known(recipient[1]))
        elif channel and channel[1] == "analysis":
            self._open("thinking", "")
        else:
            self._open("content", "")
        return text[found.end() :]

    def _known(self, recipient: str) -> str:
        """Return the declared name that is meant; models write letters, digits and underscores only."""
        name = recipient.removeprefix("functions.")
        if name in self._names:
            return name
        return next((known for known in self._names if re.sub(r"\W", "_", known) == name), name)

    def _open(self, kind: Kind, name: str) -> None:
        self._state, self._kind, self._name = "body", kind, name

    def _body(self, text: str, output: Output) -> str:
        found = _MARK.search(text)
        if found is None:
            kept = max(tail_len(text, mark) for mark in _MARKS)
            self._add(text[: len(text) - kept], output)
            self._held = text[len(text) - kept :]
            return ""
        self._add(text[: found.start()], output)
        self._finish(output, is_whole=True)
        if found[0] in ENDS:
            self._state = "between"
            return text[found.end() :]
        # A header without the mark that ends the message before it
        self._state = "header"
        return text[found.end() :] if found[0] == START else text[found.start() :]

    def _between(self, text: str) -> str:
        stripped = text.lstrip()
        found = _MARK.match(stripped)
        if found is None:
            if any(mark.startswith(stripped) for mark in _MARKS):
                self._held = stripped
                return ""
            self._open("content", "")
            return stripped
        if found[0] in ENDS:
            return stripped[found.end() :]
        self._state = "header"
        return stripped[found.end() :] if found[0] == START else stripped

    def _add(self, text: str, output: Output) -> None:
        if self._kind == "thinking":
            output.thinking += text
        elif self._kind == "content":
            output.content += text
        elif text:
            self._call.append(text)
            self._call_len += len(text)
            if self._call_len > MAX_CALL_CHARS:
                output.content += "".join(self._call)
                self._call, self._call_len, self._kind = [], 0, "content"

    def _finish(self, output: Output, *, is_whole: bool) -> None:
        if self._kind != "call":
            return
        body = "".join(self._call)
        self._call, self._call_len, self._kind = [], 0, "content"
        try:
            values = parse_values(body, is_whole) if body.strip() else [{}]
        except (ValueError, RecursionError):
            values = []
        if len(values) == 1 and isinstance(values[0], dict):
            output.calls.append(ParsedCall(self._name, values[0]))
        else:
            output.content += body


def tail_of(text: str) -> Callable[[str], int]:
    """Return the function from a mark to how much of it ``text`` ends with."""
    return lambda mark: tail_len(text, mark)


def _may_be_header(head: str) -> bool:
    """Say whether a header begins so: ``assistant``, a recipient, a channel, each of them optional."""
    rest = head.lstrip()
    if "assistant".startswith(rest):
        return True
    rest = rest.removeprefix("assistant").lstrip()
    return any(begin.startswith(rest) or rest.startswith(begin) for begin in ("to=", "<|"))
