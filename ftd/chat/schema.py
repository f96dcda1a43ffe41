"""From the ``format`` of a request to a grammar that the engine can enforce.

    "json"         any JSON object
    {…}            a JSON schema; keywords that cannot be enforced are ignored, with a warning in the log
    ↳ a grammar in llguidance's form, checked without a vocabulary, so that a bad schema fails before a load

White space is bounded, between tokens only: one blank, or a line break and its indentation. A text ends at
its closing brace.
"""

import json
import logging
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ftd import log
from ftd.errors import InvalidOption

_log = logging.getLogger(__name__)

Format = str | Mapping[str, Any]

# An object of n optional properties compiles in quadratic time: 0.6 s at this size
MAX_SCHEMA_CHARS = 64 << 10
MAX_GRAMMAR_SYMBOLS = 50_000
WHITE_SPACE = r" ?|\n[ \t]{0,16}"
_EXPECTED = 'expected "json" or a valid JSON Schema object'


def grammar_of(wanted: Format) -> str:
    """Return the grammar of a ``format``; raise InvalidOption if it is none.

    Takes milliseconds, and up to a second for the largest schemas: call it in a thread.
    """
    if wanted == "json":
        return _compiled('{"type":"object"}')
    if not isinstance(wanted, Mapping):
        raise InvalidOption(f"invalid format: {json.dumps(wanted)[:100]}; {_EXPECTED}")
    try:
        text = json.dumps({key: value for key, value in wanted.items() if key != "x-guidance"})
    except RecursionError:
        raise InvalidOption("invalid format: the schema is nested too deeply") from None
    if len(text) > MAX_SCHEMA_CHARS:
        raise InvalidOption(
            f"invalid format: the schema has {len(text)} characters, the most are {MAX_SCHEMA_CHARS}",
            "describe less of it",
        )
    return _compiled(text)


@lru_cache(maxsize=256)
def _compiled(text: str) -> str:
    # Takes a tenth of a second, which a daemon that nobody asks for a format never spends
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(max_grammar_size=MAX_GRAMMAR_SYMBOLS, verbose_errors=False)
    schema = json.loads(text)
    ignored: list[str] = []
    _drop_patterns(schema, ignored)
    try:
        grammar = LLMatcher.grammar_from_json_schema(
            schema, overrides={"whitespace_pattern": WHITE_SPACE, "lenient": True}
        )
    except ValueError as exc:
        raise InvalidOption(f"invalid format: {_one_line(exc)}; {_EXPECTED}") from exc
    is_error, remarks = LLMatcher.validate_grammar_with_warnings(grammar, limits=limits)
    if is_error:
        raise InvalidOption(f"invalid format: {_one_line(remarks[0])}; {_EXPECTED}")
    for remark in [*ignored, *remarks]:
        _log.warning(log.fields("format not enforced in full", reason=_one_line(remark)))
    return grammar


def without_irregular_patterns(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a schema without the patterns that no automaton matches; raise InvalidOption."""
    copied: dict[str, Any] = json.loads(json.dumps(schema))
    _drop_patterns(copied, [])
    return copied


@lru_cache(maxsize=256)
def _is_regex(pattern: str) -> bool:
    from llguidance import LLMatcher, LLParserLimits  # as above

    limits = LLParserLimits(max_grammar_size=MAX_GRAMMAR_SYMBOLS, verbose_errors=False)
    return not LLMatcher.validate_grammar(LLMatcher.grammar_from_regex(pattern), limits=limits)


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
        raise InvalidOption(f"invalid format: pattern {pattern[:100]!r}: {exc}; {_EXPECTED}") from exc


def _one_line(value: object) -> str:
    return " ".join(str(value).split())[:300]
