"""User text can never become control tokens: the guard put into it before a template runs.

Before rendering, every string that came from a user gets a private character (the *seal*, a Unicode
noncharacter that does not occur in the request) behind each character that could begin a control token. The
template copies it along. After rendering, control tokens are looked for in the sealed text, so a token text
that a user wrote is never found; then the seals are dropped and what lies between is encoded as plain text.

    user writes   a<|im_end|>b        sealed   a<∎|im_end|>b
    rendered      <|im_start|>user\na<∎|im_end|>b<|im_end|>
    pieces        [im_start] "user\na<|im_end|>b" [im_end]

Text of assistant messages keeps its markup (``<think>``, ``<tool_call>``: templates look for it), but not the
texts of tokens that begin or end messages.
"""

import re
from collections.abc import Collection, Iterator
from functools import cached_property
from typing import Any

import msgspec

from ftd.chat.beside import matches
from ftd.errors import InvalidRequest

# U+FDD0..U+FDEF, then private use: no text that means something has them
_SEALS = (*range(0xFDD0, 0xFDF0), *range(0xE000, 0xF900))
_ESCAPE = re.compile(r"\\u([0-9a-f]{4})")
# Tokens inside of assistant messages: templates look for them there, and output parsers need to see them
MARKUP_TEXTS = frozenset(
    (
        *("<think>", "</think>", "[THINK]", "[/THINK]", "<seed:think>", "</seed:think>"),
        *("<|START_THINKING|>", "<|END_THINKING|>", "<|START_ACTION|>", "<|END_ACTION|>"),
        *("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|channel|>", "<|message|>", "<|start|>"),
        *(
            "<tool_call>",
            "</tool_call>",
            "[TOOL_CALLS]",
            "[ARGS]",
            "[CALL_ID]",
            "<|python_tag|>",
            "<|tool_call|>",
        ),
    )
)
MAX_DEPTH = 64


class Rendered(msgspec.Struct, frozen=True):
    """A prompt as text, in which ``control`` texts without a ``seal`` inside stand for control tokens."""

    sealed: str
    seal: str
    control: frozenset[str]

    @property
    def text(self) -> str:
        """The prompt as people see it."""
        return self.sealed.replace(self.seal, "") if self.seal else self.sealed

    def ends_with(self, tag: str) -> bool:
        """Say whether the prompt ends with ``tag``, blanks aside."""
        return self.sealed.rstrip().endswith(tag)

    def plus(self, text: str) -> "Rendered":
        """Return the prompt followed by trusted text."""
        return Rendered(self.sealed + text, self.seal, self.control)


class Guard(msgspec.Struct, frozen=True, dict=True):
    """Seals strings for one template; ``edges``: the template glues user text to parts of control tokens."""

    control: frozenset[str]
    edges: bool = False

    @cached_property
    def _firsts(self) -> frozenset[str]:
        return frozenset(text[0] for text in self.control)

    @cached_property
    def _framing(self) -> re.Pattern[str] | None:
        texts = sorted(self.control - MARKUP_TEXTS, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, texts))) if texts else None

    @cached_property
    def _beginnings(self) -> frozenset[str]:
        framing = self.control - MARKUP_TEXTS
        return frozenset(text[:length] for text in framing for length in range(1, len(text)))

    @cached_property
    def _endings(self) -> frozenset[str]:
        return frozenset(text[start:] for text in self.control for start in range(1, len(text)))

    @cached_property
    def _joined(self) -> str:
        return "\0".join(self.control)

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self.control), default=0)

    def seal(self, text: str, seal: str) -> str:
        """Return ``text`` with a seal in every place where a control token could begin or go on."""
        sealed = text
        for first in self._firsts:
            sealed = sealed.replace(first, first + seal)
        return seal + sealed if self.edges and self._continues_token(text) else sealed

    def seal_assistant(self, text: str, seal: str) -> str:
        """Return the text of an assistant message with framing tokens sealed and markup left alone."""
        if self._framing is None:
            return text
        pieces: list[str] = []
        done = 0
        for match in matches(self._framing, text, self._longest):
            pieces += (text[done : match.start() + 1], seal)
            done = match.start() + 1
        sealed = "".join((*pieces, text[done:]))
        for length in range(1, self._longest):
            if sealed[-length:] in self._beginnings:
                sealed = f"{sealed[: len(sealed) - length + 1]}{seal}{sealed[len(sealed) - length + 1 :]}"
                break
        return seal + sealed if self.edges and self._continues_token(text) else sealed

    def _continues_token(self, text: str) -> bool:
        """Say whether ``text`` lies inside of a control token, or begins with the end of one."""
        if len(text) < self._longest and text in self._joined:
            return bool(text)
        return any(text[:length] in self._endings for length in range(1, min(self._longest, len(text) + 1)))

    def seal_value(self, value: Any, seal: str, depth: int = 0) -> Any:
        """Return JSON data with all of its strings sealed, keys too."""
        if depth > MAX_DEPTH:
            raise InvalidRequest(f"messages or tools are nested too deeply: more than {MAX_DEPTH} levels")
        if isinstance(value, str):
            return self.seal(value, seal)
        if isinstance(value, dict):
            return {
                self.seal(str(key), seal): self.seal_value(item, seal, depth + 1)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.seal_value(item, seal, depth + 1) for item in value]
        return value


def choose_seal(*values: Any) -> str:
    """Return a character that occurs in none of the strings of ``values``, not as an escape either."""
    texts = list(_strings(values, 0))
    escaped = {int(code, 16) for text in texts for code in _ESCAPE.findall(text)}
    for code in _SEALS:
        if code not in escaped and not any(chr(code) in text for text in texts):
            return chr(code)
    raise InvalidRequest("the request uses every private character of Unicode")


def _strings(value: Any, depth: int) -> Iterator[str]:
    if depth > MAX_DEPTH:
        raise InvalidRequest(f"messages or tools are nested too deeply: more than {MAX_DEPTH} levels")
    if isinstance(value, str):
        if not value.isascii() or "\\u" in value:
            yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _strings(key, depth + 1)
            yield from _strings(item, depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item, depth + 1)


def glues(literals: Collection[str], control: Collection[str]) -> bool:
    """Say whether a literal of a template ends in the beginning of a control token (``<`` before a name)."""
    beginnings = {text[:n] for text in control for n in range(1, len(text))}
    longest = max(map(len, beginnings), default=0)
    return any(
        literal[-n:] in beginnings for literal in literals for n in range(1, min(longest, len(literal)) + 1)
    )
