"""Typed and bounded look-ups in the hyperparameters of a model, which nobody has checked before."""

import math
from collections.abc import Mapping
from typing import Any

from ftd.errors import InvalidFtw

# Wider than any model known; keeps every later product of two of them far inside 63 bits.
MAX_SIZE = 1 << 24


class Values:
    """Typed and bounded access to an untrusted mapping."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def is_absent(self, name: str) -> bool:
        """Return whether ``name`` is missing or null."""
        return self.values.get(name) is None

    def size(self, name: str, default: int | None = None, *, low: int = 1, limit: int = MAX_SIZE) -> int:
        """Return an integer from ``low`` to ``limit``; InvalidFtw if it is missing or another value."""
        value = self.values.get(name)
        value = default if value is None else value
        if value is None:
            raise InvalidFtw(f"hyperparameter is missing: {name}")
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= limit:
            raise InvalidFtw(f"{name} must be an integer between {low} and {limit}: {value!r}")
        return value

    def number(self, name: str, default: float, *, low: float, high: float) -> float:
        """Return a finite number from ``low`` to ``high``."""
        value = self.values.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise InvalidFtw(f"{name} must be a number: {value!r}")
        if not low <= value <= high:
            raise InvalidFtw(f"{name} must be between {low} and {high}: {value!r}")
        return float(value)

    def first_size(self, names: tuple[str, ...], *, limit: int = MAX_SIZE) -> int:
        """Return the size under the first of ``names`` that is there."""
        given = [name for name in names if not self.is_absent(name)]
        return self.size(given[0] if given else names[0], limit=limit)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a bool."""
        value = self.values.get(name)
        value = default if value is None else value
        if value is not None and not isinstance(value, bool):
            raise InvalidFtw(f"{name} must be true or false: {value!r}")
        return bool(value)

    def text(self, name: str, default: str) -> str:
        """Return a string."""
        value = self.values.get(name, default)
        if not isinstance(value, str):
            raise InvalidFtw(f"{name} must be a string: {value!r}")
        return value

    def texts(self, name: str) -> list[str]:
        """Return a list of strings, empty where there is none."""
        value = self.values.get(name) or []
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            raise InvalidFtw(f"{name} must be a list of strings")
        return value

    def mapping(self, name: str) -> Mapping[str, Any]:
        """Return an object, empty where there is none."""
        value = self.values.get(name) or {}
        if not isinstance(value, Mapping):
            raise InvalidFtw(f"{name} must be an object: {value!r}")
        return value
