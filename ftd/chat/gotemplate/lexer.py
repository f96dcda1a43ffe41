"""Text and tokens of a Go template.

Between ``{{`` and ``}}`` the token kinds are: field (``.Name``), variable (``$x``), word, string, number, and
punctuation ``. | ( ) , := =`` as kinds of their own. ``spaced`` tells whether blanks precede a token, because
``.A.B`` is a chain and ``.A .B`` are two operands.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ftd.chat.gotemplate.nodes import GoTemplateError

_BLANKS = " \t\r\n"
_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+)
    |(?P<field>\.[^\W\d]\w*)
    |(?P<number>[+-]?(?:0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+|(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?))
    |(?P<variable>\$\w*)
    |(?P<word>[^\W\d]\w*)
    |(?P<string>"(?:[^"\\\n]|\\.)*")
    |(?P<raw>`[^`]*`)
    |(?P<char>'(?:[^'\\\n]|\\.)+')
    |(?P<punctuation>:=|[.|(),=])""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{3}|.)", re.DOTALL)
_SIMPLE = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"} | {
    char: char for char in "\\\"'"
}


@dataclass(frozen=True, slots=True)
class Token:
    """One token of an action; ``value`` is the decoded constant of a string or number."""

    kind: str
    text: str
    line: int
    spaced: bool = False
    value: Any = None


@dataclass(frozen=True, slots=True)
class TextPart:
    """Text outside of actions, blanks already trimmed."""

    text: str
    line: int


@dataclass(frozen=True, slots=True)
class ActionPart:
    """The tokens of one action."""

    tokens: tuple[Token, ...]
    line: int


def parts(source: str) -> Iterator[TextPart | ActionPart]:
    """Yield the text and actions of a template in order; comments vanish."""
    position, trim, line = 0, False, 1
    while True:
        start = source.find("{{", position)
        text = source[position:] if start < 0 else source[position:start]
        if trim:
            text = text.lstrip(_BLANKS)
        if start < 0:
            if text:
                yield TextPart(text, line)
            return
        inner = start + 2
        if source[inner : inner + 1] == "-" and source[inner + 1 : inner + 2] in tuple(_BLANKS):
            text = text.rstrip(_BLANKS)
            inner += 2
        if text:
            yield TextPart(text, line)
        line += source.count("\n", position, start)
        tokens, position, trim = _action(source, inner, line)
        if tokens is not None:
            yield ActionPart(tokens, line)
        line += source.count("\n", start, position)


def _close(source: str, position: int) -> tuple[int, bool] | None:
    """Return the end of the closing delimiter at ``position`` and whether it trims; None if there is none."""
    if source.startswith("}}", position):
        return position + 2, False
    if source.startswith("-}}", position) and source[position - 1 : position] in tuple(_BLANKS):
        return position + 3, True
    return None


def _action(source: str, position: int, line: int) -> tuple[tuple[Token, ...] | None, int, bool]:
    comment = re.compile(r"[ \t\r\n]*/\*").match(source, position)
    if comment:
        end = source.find("*/", comment.end())
        if end < 0:
            raise GoTemplateError(f"line {line}: unclosed comment")
        after = end + 2
        while source[after : after + 1] in tuple(_BLANKS):
            after += 1
        if (closed := _close(source, after)) is None:
            raise GoTemplateError(f"line {line}: comment ends before closing delimiter")
        return None, *closed
    tokens: list[Token] = []
    spaced = False
    while (closed := _close(source, position)) is None:
        match = _TOKEN.match(source, position)
        if match is None or match.lastgroup is None:
            rest = source[position : position + 20]
            raise GoTemplateError(f"line {line}: {'unclosed action' if not rest else f'unexpected {rest!r}'}")
        position = match.end()
        if match.lastgroup == "space":
            spaced = True
            continue
        tokens.append(_token(match.lastgroup, match[0], line, spaced))
        spaced = False
    return tuple(tokens), *closed


def _token(kind: str, text: str, line: int, spaced: bool) -> Token:
    if kind == "punctuation":
        return Token(text, text, line, spaced)
    if kind == "raw":
        return Token("string", text, line, spaced, text[1:-1])
    if kind == "string":
        return Token("string", text, line, spaced, _unescape(text[1:-1], line))
    if kind == "char":
        char = _unescape(text[1:-1], line)
        if len(char) != 1:
            raise GoTemplateError(f"line {line}: malformed character constant: {text:.40}")
        return Token("number", text, line, spaced, ord(char))
    if kind == "number":
        return Token("number", text, line, spaced, _number(text, line))
    return Token(kind, text, line, spaced)


def _number(text: str, line: int) -> int | float:
    try:
        digits = text.lstrip("+-")
        if digits.isdigit() and len(digits) > 1 and digits[0] == "0":
            return int(text, 8)
        if re.fullmatch(r"[+-]?(\d[\d_]*|0[xXoObB].*)", text):
            number = int(text, 0)
            if abs(number) >= 1 << 63:
                raise ValueError
            return number
        return float(text)
    except ValueError:
        raise GoTemplateError(f"line {line}: bad number syntax: {text:.40}") from None


def _unescape(text: str, line: int) -> str:
    def replace(match: re.Match[str]) -> str:
        code = match[1]
        if code in _SIMPLE:
            return _SIMPLE[code]
        try:
            return chr(int(code[1:], 16)) if code[0] in "xuU" and len(code) > 1 else chr(int(code, 8))
        except ValueError:
            raise GoTemplateError(f"line {line}: unknown escape in string: \\{code:.10}") from None

    return _ESCAPE.sub(replace, text)
