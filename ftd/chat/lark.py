"""Writes grammars in llguidance's dialect of Lark: literals, JSON by a schema, free text up to a mark.

A text that is a special token of the vocabulary can only be written by its id, ``<[151657]>``: the bytes of
text never match it. That is why literals are cut at the special tokens in them.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

# White space between tokens of JSON: one blank, or a line break and its indentation
JSON_OPTIONS: Any = {"whitespace_pattern": r" ?|\n[ \t]{0,16}", "lenient": True}
_TERMINALS = {
    "TEXT": r"/(.|\n)*/",
    "BLANKS": r"/[ \n]{1,8}/",
    "QUOTED": r"/'([^'\\\n]|\\[^\n])*'/",
    "DIGITS": r"/[0-9]{1,4}/",
    "WORD": r"/[A-Za-z0-9_-]{1,40}/",
}


class Lark:
    """Rules of one grammar; ``special`` maps the texts of special tokens to their ids."""

    def __init__(self, special: Mapping[str, int]) -> None:
        self._special = special
        texts = sorted(filter(None, special), key=len, reverse=True)
        self._pattern = re.compile(f"({'|'.join(map(re.escape, texts))})") if texts else None
        self._rules: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._terminals: set[str] = set()

    def text(self, start: str) -> str:
        """Return the grammar whose rule ``start`` has this body."""
        rules = {"start": start, **self._rules}
        lines = ["%llguidance {}", *(f"{name}: {body}" for name, body in rules.items())]
        return "\n".join([*lines, *(f"{name}: {_TERMINALS[name]}" for name in sorted(self._terminals))])

    def has(self, text: str) -> bool:
        """Say whether ``text`` is a special token."""
        return text in self._special

    def terminal(self, name: str) -> str:
        """Return the name of a terminal that is now used."""
        self._terminals.add(name)
        return name

    def blanks(self) -> str:
        """Return what matches a few blanks, or none."""
        return f"{self.terminal('BLANKS')}?"

    def literal(self, text: str) -> str:
        """Return what matches exactly ``text``."""
        return " ".join(self._pieces(text))

    def _pieces(self, text: str) -> list[str]:
        parts = self._pattern.split(text) if self._pattern else [text]
        return [self._piece(part) for part in parts if part]

    def _piece(self, part: str) -> str:
        return f"<[{self._special[part]}]>" if part in self._special else json.dumps(part)

    def rule(self, body: str, prefix: str = "r") -> str:
        """Return the name of the rule with this body, which is written once."""
        if body not in self._names:
            self._names[body] = f"{prefix}{len(self._names)}"
            self._rules[self._names[body]] = body
        return self._names[body]

    def json(self, schema: Mapping[str, Any]) -> str:
        """Return what matches a JSON value of a schema."""
        options = {key: value for key, value in schema.items() if key != "x-guidance"}
        return self.rule("%json " + json.dumps(options | {"x-guidance": JSON_OPTIONS}), "json")

    def until(self, mark: str) -> str:
        """Return what matches any text up to and including the first ``mark``."""
        pieces = self._pieces(mark)
        special = next((idx for idx, piece in enumerate(pieces) if piece.startswith("<[")), None)
        if special is None:
            name = f"until{len(self._names)}"
            if mark in self._names:
                return self._names[mark]
            self._names[mark] = name
            self._rules[f"{name}[lazy]"] = f"{self.terminal('TEXT')} {json.dumps(mark)}"
            return name
        # Text has no special tokens in it, so it ends before the first one
        before = json.loads(pieces[0]) if special else ""
        head = self.rule(f"/(.|\\n)*{_escaped(before)}/", "T") if before else self.terminal("TEXT")
        return " ".join([head, *pieces[special:]])

    def choice(self, options: Sequence[str]) -> str:
        """Return what matches one of several bodies."""
        return options[0] if len(options) == 1 else self.rule(" | ".join(options))


def _escaped(text: str) -> str:
    return re.sub(r"([.^$*+?()\[\]{}|\\/])", r"\\\1", text)
