"""How much is tried: by scripts/test all; where slow tests are left out, a fifth of the examples."""

from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# No deadlines: a loaded machine would fail what is only slow
_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("all", max_examples=100, **_COMMON)
settings.register_profile("quick", max_examples=20, **_COMMON)


def use(profile: str) -> None:
    """Put "all" or "quick" in force; before tests are imported."""
    settings.load_profile(profile)


def examples(count: int) -> int:
    """Return ``count``, or the same part of it that the profile in force takes of a hundred."""
    return max(1, count * settings().max_examples // 100)


def first_quick(*values: Any) -> list[Any]:
    """Return values of a parameter (tuples: of several): the first as it is, the others for slow tests."""
    others = (value if isinstance(value, tuple) else (value,) for value in values[1:])
    return [values[0], *(pytest.param(*other, marks=pytest.mark.slow) for other in others)]
