"""What `ftd run` is asked for in words of the command line, as the API takes it."""

import json
from typing import Any

from ftd import units
from ftd.errors import InvalidOption


def parse_keep_alive(text: str | None) -> str | float | None:
    """Return ``--keepalive`` as the API takes it; raise InvalidOption."""
    if text is None:
        return None
    number = text.strip().removeprefix("-").replace(".", "", 1)
    value: str | float = float(text) if number.isdecimal() else text
    units.parse_keep_alive(value)
    return value


def parse_think(text: str | None) -> bool | str | None:
    """Return ``--think`` as the API takes it."""
    return {None: None, "true": True, "false": False}.get(text, text)


def parse_format(text: str | None) -> str | dict[str, Any] | None:
    """Return ``--format`` as the API takes it: ``json`` or a JSON schema; raise InvalidOption."""
    if text is None or text == "json":
        return text
    try:
        schema = json.loads(text)
    except ValueError:
        schema = None
    if not isinstance(schema, dict):
        raise InvalidOption(f"invalid format: {text[:80]}", "use json or a JSON schema object")
    return schema
