"""Split a stream of text into thinking and content at the tags of the template.

    looking    blanks may come before the opening tag; any other text means that there is no thinking
    thinking   up to the closing tag; blanks after the opening tag are dropped
    content    the rest; blanks after the closing tag are dropped; a second opening tag is plain text;
               a closing tag without an opening one is dropped where thinking was to be off

Text that may still become a tag is held back, so the result does not depend on how the stream was cut.
"""

from typing import Literal

import msgspec


class Split(msgspec.Struct, frozen=True):
    """Text of both kinds that one piece completed."""

    thinking: str = ""
    content: str = ""


class ThinkingSplitter:
    """One answer's splitter. ``inside``: the prompt ended with the opening tag, so thinking comes first.

    is_off: the model was told not to think; what it thinks all the same is told apart, too.
    """

    def __init__(self, opening: str, closing: str, inside: bool = False, is_off: bool = False) -> None:
        self._opening = opening
        self._closing = closing
        self._held = ""
        self._stray = is_off and not inside
        self._skip_blanks = inside
        self._state: Literal["looking", "thinking", "content"] = "thinking" if inside else "looking"

    def push(self, text: str) -> Split:
        """Return what ``text`` completes."""
        self._held += text
        thinking = ""
        if self._state == "looking":
            self._look()
        if self._state == "thinking":
            thinking = self._think()
        return Split(thinking, self._content() if self._state == "content" else "")

    def flush(self) -> Split:
        """Return the text held back, at the end of the stream."""
        held, self._held = self._held, ""
        if self._state == "thinking":
            return Split(thinking="" if self._skip_blanks else held)
        return Split(content=held)

    def _look(self) -> None:
        stripped = self._held.lstrip()
        if stripped.startswith(self._opening):
            self._held = stripped[len(self._opening) :]
            self._state, self._skip_blanks, self._stray = "thinking", True, False
        elif not self._opening.startswith(stripped):
            self._state = "content"

    def _think(self) -> str:
        self._drop_blanks()
        thinking, tag, rest = self._held.partition(self._closing)
        if tag:
            self._held, self._state, self._skip_blanks = rest, "content", True
            return thinking
        kept = tail_len(self._held, self._closing)
        shown, self._held = self._held[: len(self._held) - kept], self._held[len(self._held) - kept :]
        return shown

    def _content(self) -> str:
        self._drop_blanks()
        if self._stray:
            before, tag, rest = self._held.partition(self._closing)
            if not tag:
                kept = tail_len(self._held, self._closing)
                content, self._held = self._held[: len(before) - kept], self._held[len(before) - kept :]
                return content
            self._stray, self._skip_blanks, self._held = False, True, rest
            return before + self._content()
        content, self._held = self._held, ""
        return content

    def _drop_blanks(self) -> None:
        if self._skip_blanks:
            self._held = self._held.lstrip()
            self._skip_blanks = not self._held


def tail_len(text: str, tag: str) -> int:
    """Return the length of the longest end of ``text`` that is a beginning of ``tag``, but not all of it."""
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0
