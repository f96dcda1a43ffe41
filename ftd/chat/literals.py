"""Values as models write them where they should write JSON: the tolerant reader of tool arguments.

    JSON            also with bare line ends in strings, trailing commas, unknown escapes
    Python          'text', True, None, f(a=1)                          LFM2
    bare keys       {city:<|"|>Oslo<|"|>,days:3}                         Gemma

Linear in the length of the text; nested no deeper than MAX_DEPTH. Raises ValueError where no value is.
"""

import math
import re
from typing import Any

MAX_DEPTH = 64
_BLANKS = re.compile(r"\s*")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,400})(?:\.\d{1,400})?(?:[eE][+-]?\d{1,4})?(?![\w.])")
_WORD = re.compile(r"[A-Za-z_][\w.-]*")
_KEY = re.compile(r"[^\s:{}\[\],\"']+")
_STRING = {quote: re.compile(rf"[^{quote}\\]*(?:\\.[^{quote}\\]*)*", re.DOTALL) for quote in ("'", '"')}
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_WORDS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", '"': '"', "'": "'", "\\": "\\", "/": "/"}
_GEMMA_QUOTE = '<|"|>'


def finite(text: str) -> float | None:
    """Return the number that ``text`` says; None, which is what JavaScript writes, for an infinite one."""
    number = float(text)
    return number if math.isfinite(number) else None


class Literals:
    """Reads values one after the other; ``position`` is where the next begins."""

    def __init__(self, text: str, position: int = 0) -> None:
        self._text = text
        self.position = position

    def peek(self) -> str:
        """Return the next character that is no blank, empty at the end."""
        self.position = _BLANKS.match(self._text, self.position).end()  # type: ignore[union-attr]
        return self._text[self.position : self.position + 1]

    def take(self, text: str) -> bool:
        """Step over ``text`` if it comes next, blanks aside."""
        self.peek()
        if not self._text.startswith(text, self.position):
            return False
        self.position += len(text)
        return True

    def word(self) -> str:
        """Return the identifier that comes next."""
        self.peek()
        found = _WORD.match(self._text, self.position)
        if found is None:
            raise ValueError("no name")
        self.position = found.end()
        return found[0]

    def value(self, depth: int = 0) -> Any:
        """Return the value that comes next."""
        if depth > MAX_DEPTH:
            raise ValueError("nested too deeply")
        first = self.peek()
        if first == "{":
            return self._object(depth)
        if first == "[":
            return self._list(depth)
        if first in ('"', "'") and first:
            return self._string(first)
        if self.take(_GEMMA_QUOTE):
            return self._until(_GEMMA_QUOTE)
        if found := _NUMBER.match(self._text, self.position):
            self.position = found.end()
            return finite(found[0]) if any(char in found[0] for char in ".eE") else int(found[0])
        word = self.word()
        if word not in _WORDS:
            raise ValueError(f"no value: {word:.40}")
        return _WORDS[word]

    def keywords(self) -> dict[str, Any]:
        """Return the arguments of a call, up to its closing parenthesis: ``a=1, b="x")``."""
        found: dict[str, Any] = {}
        while not self.take(")"):
            name = self.word()
            if not self.take("="):
                raise ValueError("argument without a value")
            found[name] = self.value(1)
            if not self.take(",") and self.peek() != ")":
                raise ValueError("no comma between arguments")
        return found

    def _object(self, depth: int) -> dict[str, Any]:
        self.position += 1
        found: dict[str, Any] = {}
        while not self.take("}"):
            key = self._key()
            if not self.take(":"):
                raise ValueError("key without a value")
            found[key] = self.value(depth + 1)
            if not self.take(",") and self.peek() != "}":
                raise ValueError("no comma in an object")
        return found

    def _key(self) -> str:
        first = self.peek()
        if first in ('"', "'") and first:
            return self._string(first)
        if self.take(_GEMMA_QUOTE):
            return self._until(_GEMMA_QUOTE)
        found = _KEY.match(self._text, self.position)
        if found is None:
            raise ValueError("no key")
        self.position = found.end()
        return found[0]

    def _list(self, depth: int) -> list[Any]:
        self.position += 1
        found: list[Any] = []
        while not self.take("]"):
            found.append(self.value(depth + 1))
            if not self.take(",") and self.peek() != "]":
                raise ValueError("no comma in a list")
        return found

    def _until(self, end: str) -> str:
        start, self.position = self.position, self._text.find(end, self.position)
        if self.position < 0:
            raise ValueError("string without an end")
        text = self._text[start : self.position]
        self.position += len(end)
        return text

    def _string(self, quote: str) -> str:
        start = self.position + 1
        end = _STRING[quote].match(self._text, start).end()  # type: ignore[union-attr]
        if end >= len(self._text):
            raise ValueError("string without an end")
        self.position = end + 1
        return _unescaped(self._text[start:end])


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text

    def one(match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1], 16))
        return _ESCAPES.get(match[2], match[0])

    plain = _ESCAPE.sub(one, text)
    try:  # halves of a surrogate pair become the character
        return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    except UnicodeEncodeError:
        return plain
