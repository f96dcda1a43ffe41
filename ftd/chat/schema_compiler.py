"""Compiles JSON schemas to grammars, with the library that does it; ``schema`` says what may be compiled."""

import json
import logging
import re
from functools import lru_cache
from typing import Any, NamedTuple

from llguidance import LLMatcher, LLParserLimits

from ftd import log
from ftd.chat.lark import JSON_OPTIONS

_log = logging.getLogger(__name__)
MAX_GRAMMAR_SYMBOLS = 50_000
_LIMITS = LLParserLimits(max_grammar_size=MAX_GRAMMAR_SYMBOLS, verbose_errors=False)


class Compiled(NamedTuple):
    """A grammar, and the schema (JSON) without the patterns that no automaton matches."""

    grammar: str
    schema: str


@lru_cache(maxsize=256)
def compiled(text: str) -> Compiled:
    """Return the grammar of a schema; what it does not enforce is logged. Raises ValueError with a reason."""
    schema = json.loads(text)
    ignored: list[str] = []
    _drop_patterns(schema, ignored)
    try:
        grammar = LLMatcher.grammar_from_json_schema(schema, overrides=JSON_OPTIONS)
    except ValueError as exc:
        raise ValueError(_one_line(exc)) from exc
    is_error, remarks = LLMatcher.validate_grammar_with_warnings(grammar, limits=_LIMITS)
    if is_error:
        raise ValueError(_one_line(remarks[0]))
    for remark in [*ignored, *remarks]:
        _log.warning(log.fields("format not enforced in full", reason=_one_line(remark)))
    return Compiled(grammar, json.dumps(schema))


@lru_cache(maxsize=256)
def _is_regex(pattern: str) -> bool:
    return not LLMatcher.validate_grammar(LLMatcher.grammar_from_regex(pattern), limits=_LIMITS)


def _drop_patterns(schema: Any, ignored: list[str]) -> None:
    """Remove patterns that are legal but have no automaton (look-around, back references)."""
    pending = [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, list):
            pending += part
        elif isinstance(part, dict):
            pattern = part.get("pattern")
            if isinstance(pattern, str) and not _is_regex(pattern):
                _check_pattern(pattern)
                del part["pattern"]
                ignored.append(f"pattern {pattern}")
            pending += part.values()


def _check_pattern(pattern: str) -> None:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as exc:
        raise ValueError(f"pattern {pattern[:100]!r}: {exc}") from exc


def _one_line(value: object) -> str:
    return " ".join(str(value).split())[:300]
