"""From the ``format`` of a request to a grammar that the engine can enforce.

    "json"         any JSON object
    {…}            a JSON schema; keywords that cannot be enforced are ignored, with a warning in the log
    ↳ a grammar in llguidance's form, checked without a vocabulary, so that a bad schema fails before a load

White space is bounded, between tokens only: one blank, or a line break and its indentation. A text ends at
its closing brace.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ftd.chat.schema_check import BadSchema
from ftd.errors import InvalidOption

if TYPE_CHECKING:
    from ftd.chat.schema_compiler import Compiled

Format = str | Mapping[str, Any]

# An object of n optional properties compiles in quadratic time: 0.6 s at this size
MAX_SCHEMA_CHARS = 64 << 10
_EXPECTED = 'expected "json" or a valid JSON Schema object'


def grammar_of(wanted: Format) -> str:
    """Return the grammar of a ``format``; raise InvalidOption if it is none.

    Takes milliseconds, and up to a second for the largest schemas: call it in a thread.
    """
    return _compiled({"type": "object"} if wanted == "json" else wanted).grammar


def enforceable(schema: Mapping[str, Any], subject: str) -> dict[str, Any]:
    """Return a schema without what no grammar can enforce; raise InvalidOption, of ``subject``, as above."""
    kept: dict[str, Any] = json.loads(_compiled(schema, subject).schema)
    return kept


def check_grammar(grammar: str, subject: str) -> None:
    """Raise InvalidOption, of ``subject``, if a grammar that we wrote does not compile. As above."""
    from ftd.chat import schema_compiler  # as below

    if fault := schema_compiler.fault_of(grammar):
        raise InvalidOption(f"{subject}: {fault}", "simplify them, or leave strict out")


def _compiled(wanted: Format, subject: str = "invalid format") -> "Compiled":
    if not isinstance(wanted, Mapping):
        raise InvalidOption(f"{subject}: {json.dumps(wanted)[:100]}; {_EXPECTED}")
    try:
        text = _text({key: value for key, value in wanted.items() if key != "x-guidance"})
    except RecursionError:
        raise InvalidOption(f"{subject}: the schema is nested too deeply") from None
    if len(text) > MAX_SCHEMA_CHARS:
        raise InvalidOption(
            f"{subject}: the schema has more than {MAX_SCHEMA_CHARS} characters",
            "describe less of it",
        )
    from ftd.chat import schema_compiler  # its library takes a tenth of a second; few requests have a schema

    try:
        return schema_compiler.compiled(text)
    except BadSchema as exc:
        raise InvalidOption(f"{subject}: {exc}", exc.hint) from exc


def _text(schema: Mapping[str, Any]) -> str:
    """Return a schema as JSON, or the beginning of one that is too long."""
    parts: list[str] = []
    room = MAX_SCHEMA_CHARS
    for part in json.JSONEncoder().iterencode(schema):
        parts.append(part)
        room -= len(part)
        if room < 0:
            break
    return "".join(parts)
