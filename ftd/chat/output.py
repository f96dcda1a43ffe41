"""What an answer's text is made of, and the parsers that tell it apart, as a daemon uses them.

Tagged     thinking between tags, then content with tool calls in it        most families
Harmony    channels (``ftd.chat.harmony``)                                  gpt-oss
"""

from typing import Protocol

import msgspec

from ftd.chat.callbodies import ParsedCall
from ftd.chat.thinking import Split, ThinkingSplitter
from ftd.chat.toolcalls import ToolCallParser


class Output(msgspec.Struct):
    """Thinking, content and calls that one piece completed."""

    thinking: str = ""
    content: str = ""
    calls: list[ParsedCall] = []


class OutputParser(Protocol):
    """Takes an answer piece by piece; the result does not depend on how it was cut."""

    def push(self, text: str) -> Output:
        """Return what ``text`` completes."""

    def flush(self) -> Output:
        """Return what was held back, at the end of the answer."""


class TaggedParser:
    """Thinking first, if there is a splitter; in the rest calls, if there is a parser for them."""

    def __init__(self, thinking: ThinkingSplitter | None = None, calls: ToolCallParser | None = None) -> None:
        self._thinking = thinking
        self._calls = calls

    def push(self, text: str) -> Output:
        """Return what ``text`` completes."""
        if self._thinking is None:
            return self._parsed(Split(content=text))
        return self._parsed(self._thinking.push(text))

    def flush(self) -> Output:
        """Return what was held back, at the end of the answer."""
        output = Output() if self._thinking is None else self._parsed(self._thinking.flush())
        if self._calls is not None:
            rest = self._calls.flush()
            output.content += rest.content
            output.calls += rest.calls
        return output

    def _parsed(self, split: Split) -> Output:
        if self._calls is None or not split.content:
            return Output(split.thinking, split.content)
        parsed = self._calls.push(split.content)
        return Output(split.thinking, parsed.content, parsed.calls)
