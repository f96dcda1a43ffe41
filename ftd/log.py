"""Logging: one line an event, ``event key=value``, on standard error.

Library modules only call ``logging.getLogger(__name__)``; the CLI and the engine worker call ``configure``.
"""

import logging
import sys


def configure(level: str = "info") -> None:
    """Send records of ``level`` and above to standard error, one line each."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def fields(event: str, **values: object) -> str:
    """Format ``event key=value …``; floats get three significant digits, strings with blanks get quotes."""
    parts = [event]
    for key, value in values.items():
        text = f"{value:.3g}" if isinstance(value, float) else str(value)
        parts.append(f"{key}={text!r}" if " " in text else f"{key}={text}")
    return " ".join(parts)
