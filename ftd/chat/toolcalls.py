"""Find tool calls in streamed text; whatever is no call after all comes out as content.

    text    content flows; the longest end that may still become a mark is held back
    opened  behind the mark that opens a section of calls: blanks may come, then a call must
    call    everything is collected until the call is whole: the closer, or the end of a JSON value
    after   behind a call without closer: blanks, commas and semicolons are dropped, another call may follow
    closed  behind a call with one: blanks and the mark that ends the section are dropped

A call that does not parse is content, never an error. Each character is looked at a fixed number of times,
and the result does not depend on how the text was cut into pieces.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from ftd.chat.callbodies import ParsedCall, parse_body, schemas_of
from ftd.chat.callformats import CallFormat
from ftd.chat.thinking import tail_len

MAX_CALL_CHARS = 8 << 20
_PYTHON_TAG = "<|python_tag|>"
# A closer within a string of these is part of an argument
_WITH_STRINGS = ("json", "named", "python")


class Parsed(msgspec.Struct):
    """Content and calls that one piece completed."""

    content: str = ""
    calls: list[ParsedCall] = []


class _JsonScanner:
    """Finds the end of a JSON value, a character at a time."""

    def __init__(self) -> None:
        self.depth = 0
        self.in_string = False
        self._escaped = False

    def ends_at(self, char: str) -> bool:
        """Step over ``char``; True if it closes the value."""
        if self.in_string:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == '"':
                self.in_string = False
        elif char == '"' and self.depth:
            self.in_string = True
        elif char in "{[":
            self.depth += 1
        elif char in "}]" and self.depth:
            self.depth -= 1
            return self.depth == 0
        return False

    def pass_over(self, text: str) -> None:
        """Step over all of ``text``."""
        for char in text:
            self.ends_at(char)


class ToolCallParser:
    """One answer's parser. ``tools`` are the declared ones, as the request has them."""

    def __init__(self, call_format: CallFormat, tools: Sequence[Mapping[str, Any]]) -> None:
        self._format = call_format
        self._schemas = schemas_of(tools)
        self._state: Literal["text", "opened", "call", "after", "closed"] = "text"
        self._held = ""
        self._section = ""  # what opened a section that no call has followed yet
        self._seen_text = False  # a bare call must be the first thing in the answer
        self._body: list[str] = []
        self._body_len = 0
        self._has_name = False
        self._scanner = _JsonScanner()
        self._tail = ""  # end of the body, in which the closer may begin
        self._skip_blanks = False  # those behind a call
        self._dropped = " \t\r\n,;" + ("]" if call_format.tag.endswith("[") else "")

    def push(self, text: str) -> Parsed:
        """Return what ``text`` completes."""
        parsed = Parsed()
        rest = self._held + text
        self._held = ""
        while rest:
            if self._state == "text":
                rest = self._find_tag(rest, parsed)
            elif self._state == "opened":
                rest = self._find_first(rest, parsed)
            elif self._state == "after":
                rest = self._find_next(rest)
            elif self._state == "closed":
                rest = self._find_ending(rest)
            elif self._format.closer:
                rest = self._find_closer(rest, parsed)
            else:
                rest = self._find_end(rest, parsed)
        return parsed

    def flush(self) -> Parsed:
        """Return what was held back, at the end of the answer."""
        parsed = Parsed()
        if self._state == "call":
            self._finish_call(parsed, is_whole=False)
        elif self._state in ("text", "closed"):
            parsed.content += self._held
        elif self._state == "opened":
            parsed.content += self._section + self._held
        self._held = self._section = ""
        return parsed

    def _find_tag(self, text: str, parsed: Parsed) -> str:
        if self._format.is_bare:
            return self._find_bare(text, parsed)
        if self._skip_blanks:
            text = text.lstrip()
            self._skip_blanks = not text
        marks = [mark for mark in (self._format.tag, self._format.opening) if mark]
        found = [(text.find(mark), mark) for mark in marks if mark in text]
        if found:
            position, mark = min(found)
            parsed.content += text[:position]
            rest = text[position + len(mark) :]
            if mark == self._format.tag:
                self._begin(mark)
            else:
                self._state, self._section = "opened", mark
            return rest
        kept = max(tail_len(text, mark) for mark in marks)
        parsed.content += text[: len(text) - kept]
        self._held = text[len(text) - kept :]
        return ""

    def _find_first(self, text: str, parsed: Parsed) -> str:
        """Look for the first call of a section; without one its mark is content."""
        stripped, tag = text.lstrip(), self._format.tag
        self._section += text[: len(text) - len(stripped)]
        if stripped.startswith(tag):
            self._begin(tag)
            return stripped[len(tag) :]
        if tag.startswith(stripped):
            self._held = stripped
            return ""
        parsed.content += self._section
        self._section, self._state = "", "text"
        return stripped

    def _find_bare(self, text: str, parsed: Parsed) -> str:
        stripped = text.lstrip()
        if not self._seen_text and (not stripped or _PYTHON_TAG.startswith(stripped)):
            self._held = text
            return ""
        stripped = stripped.removeprefix(_PYTHON_TAG).lstrip()
        if not self._seen_text and not stripped:
            self._held = text
            return ""
        if not self._seen_text and stripped[0] in "{[":
            self._begin(text[: len(text) - len(stripped)])
            return stripped
        self._seen_text = True
        parsed.content += text
        return ""

    def _begin(self, tag: str) -> None:
        self._state = "call"
        self._body, self._body_len, self._tail = [tag], 0, ""
        self._has_name = False
        self._scanner = _JsonScanner()

    def _find_closer(self, text: str, parsed: Parsed) -> str:
        """Collect up to the closer; only the new text and a short tail are searched."""
        closer = self._format.closer
        window = self._tail + text
        has_strings = self._format.body in _WITH_STRINGS
        seen = len(self._tail)  # the scanner is past this much of the window
        position = window.find(closer)
        while position >= 0 and has_strings:
            if position > seen:
                self._scanner.pass_over(window[seen:position])
                seen = position
            if not self._scanner.in_string:
                break
            position = window.find(closer, position + 1)
        if position < 0:
            if has_strings:
                self._scanner.pass_over(window[seen:])
            self._body.append(text)
            self._body_len += len(text)
            self._tail = window[-(len(closer) - 1) :]
            if self._body_len > MAX_CALL_CHARS:
                self._give_up(parsed)
            return ""
        taken = position + len(closer) - len(self._tail)
        self._body.append(text[:taken])
        self._finish_call(parsed, is_whole=True)
        return text[taken:]

    def _find_end(self, text: str, parsed: Parsed) -> str:
        """Collect up to the end of a JSON value."""
        for idx, char in enumerate(text):
            # Behind a name only an object can be meant: f[ARGS]{…}
            if not self._scanner.depth and char != "{" and (char != "[" or self._has_name):
                self._has_name = self._has_name or not char.isspace()
            elif self._scanner.ends_at(char):
                self._body.append(text[: idx + 1])
                self._finish_call(parsed, is_whole=False)
                return text[idx + 1 :]
        self._body.append(text)
        self._body_len += len(text)
        if self._body_len > MAX_CALL_CHARS:
            self._give_up(parsed)
        return ""

    def _find_next(self, text: str) -> str:
        stripped, tag = text.lstrip(self._dropped), self._format.tag
        if not self._format.is_bare and len(stripped) < len(tag) and tag.startswith(stripped):
            self._held = stripped
            return ""
        if stripped.startswith(tag) and not self._format.is_bare:
            self._begin(tag)
            return stripped[len(tag) :]
        if stripped[:1] in ("{", "["):
            self._begin("")
            return stripped
        if stripped:
            self._state, self._seen_text = "text", True
        return stripped

    def _find_ending(self, text: str) -> str:
        stripped, ending = text.lstrip(), self._format.ending
        if ending and stripped.startswith(ending):
            stripped = stripped[len(ending) :]
        elif ending.startswith(stripped):
            self._held = stripped
            return ""
        self._state, self._skip_blanks = "text", True
        return stripped

    def _finish_call(self, parsed: Parsed, is_whole: bool) -> None:
        raw = "".join(self._body)
        calls = self._calls(raw, is_whole)
        parsed.calls += calls
        if calls:
            self._state = "closed" if self._format.closer else "after"
        else:
            parsed.content += self._section + raw
            self._state, self._seen_text = "text", True
        self._skip_blanks, self._section = False, ""
        self._body, self._body_len = [], 0

    def _give_up(self, parsed: Parsed) -> None:
        parsed.content += self._section + "".join(self._body)
        self._state, self._seen_text, self._section = "text", True, ""
        self._body, self._body_len = [], 0

    def _calls(self, raw: str, is_whole: bool) -> list[ParsedCall]:
        body = raw
        if self._format.body != "xml":  # there the tag is the beginning of an element
            body = raw[len(self._body[0]) :]
            if self._format.closer:
                body = body.removesuffix(self._format.closer)
        only_known = self._format.is_bare
        return parse_body(self._format.body, body, self._schemas, only_known=only_known, is_whole=is_whole)
