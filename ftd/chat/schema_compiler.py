"""Compiles JSON schemas to grammars, with the library that does it; ``schema`` says what may be compiled."""

import json
import logging
import re
import time
from functools import lru_cache
from typing import Any, NamedTuple

from llguidance import LLMatcher, LLParserLimits

from ftd import log
from ftd.chat.lark import JSON_OPTIONS
from ftd.chat.schema_check import BadSchema, SchemaCheck
from ftd.chat.schema_closing import close

_log = logging.getLogger(__name__)
MAX_GRAMMAR_SYMBOLS = 50_000
_LIMITS = LLParserLimits(max_grammar_size=MAX_GRAMMAR_SYMBOLS, verbose_errors=False)
# For the search of the part with a fault
SEARCH_S = 0.5
# Where a fault is in a grammar of ours, which no client has seen: before and behind the words about it
_SOURCE = re.compile(r"\Aat \d+\(\d+\): (failed to compile JSON schema: )?|\n(.|\n)*\Z")
_DRAFT = re.compile(r"https?://json-schema\.org/draft(-0[3467]|/20(19-09|20-12))/schema#?$")

_WORDS = (
    ("incompatible types", "no value satisfies it: its types exclude each other"),
    ("Regex is empty", "no text satisfies all that is said of it: pattern, format, lengths, enum"),
    ("Unable to determine if regex is empty", "too complex: what is said of its text together"),
    ("float range", "the limits of this number cannot be enforced"),
    ("too many digits", "multipleOf has too many digits"),
    ("grammar size", "too complex to be enforced"),
    ("circular references with sibling keys", "a $ref that leads back to itself must stand alone"),
    ("schema too large", "too complex to be enforced"),
)


class Compiled(NamedTuple):
    """A grammar, and the schema (JSON): objects closed, without the patterns that no automaton matches."""

    grammar: str
    schema: str


@lru_cache(maxsize=256)
def compiled(text: str) -> Compiled:
    """Return the grammar of a schema; what it does not enforce is logged. Raises BadSchema."""
    schema = json.loads(text)
    check = SchemaCheck(schema, _is_regex)
    check.run()
    close(check)
    if isinstance(schema, dict) and not _is_draft(schema.get("$schema")):
        schema.pop("$schema", None)  # the library would look for it
    try:
        grammar, remarks = _grammar(schema)
    except ValueError as exc:
        raise _located(check, schema, _one_line(exc)) from exc
    for remark in [*check.ignored, *remarks]:
        _log.warning(log.fields("format not enforced in full", reason=_one_line(remark)))
    return Compiled(grammar, json.dumps(schema))


def fault_of(grammar: str) -> str:
    """Return what the library finds wrong with a grammar, empty if nothing."""
    is_error, remarks = LLMatcher.validate_grammar_with_warnings(grammar, limits=_LIMITS)
    return _plain(_SOURCE.sub("", remarks[0])) if is_error else ""


def _grammar(schema: Any) -> tuple[str, list[str]]:
    """Return the grammar and the library's remarks; ValueError with what it says of a fault."""
    grammar = LLMatcher.grammar_from_json_schema(schema, overrides=JSON_OPTIONS)
    is_error, remarks = LLMatcher.validate_grammar_with_warnings(grammar, limits=_LIMITS)
    if is_error:
        raise ValueError(remarks[0])
    return grammar, remarks


def _located(check: SchemaCheck, schema: dict[str, Any], reason: str) -> BadSchema:
    """Return the error with the place of the smallest part without which the schema compiles."""
    place, end_s = "#", time.monotonic() + SEARCH_S
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    seen = {place}
    while True:
        for inner in check.inner(place):
            part = check.found.get(inner)
            if inner in seen or not isinstance(part, dict) or time.monotonic() > end_s:
                continue
            seen.add(inner)
            alone = _fault(shared | part)
            if alone and not _fault_without(schema, part):
                place, reason = inner, alone
                break
        else:
            return BadSchema(place, _plain(reason))


def _fault(schema: Any) -> str:
    """Return what the library finds wrong, empty if nothing."""
    try:
        _grammar(schema)
    except ValueError as exc:
        return _one_line(exc)
    return ""


def _fault_without(schema: dict[str, Any], part: dict[str, Any]) -> str:
    kept = dict(part)
    part.clear()
    try:
        return _fault(schema)
    finally:
        part.update(kept)


def _plain(reason: str) -> str:
    """Return what the library says in words that do not need its source."""
    plain = next((plain for words, plain in _WORDS if words in reason), reason)
    return plain.replace("Unsatisfiable schema", "no value satisfies it")


@lru_cache(maxsize=256)
def _is_regex(pattern: str) -> bool:
    return not LLMatcher.validate_grammar(LLMatcher.grammar_from_regex(pattern), limits=_LIMITS)


def _is_draft(value: object) -> bool:
    return isinstance(value, str) and _DRAFT.match(value) is not None


def _one_line(value: object) -> str:
    return " ".join(str(value).split())[:300]
