"""Look-ups in untrusted settings: what they return, and the name in each refusal."""

from typing import Any

import pytest

from ftd.engine.hyperparameters import MAX_SIZE, Values
from ftd.errors import InvalidFtw

VALUES = Values(
    {"n": 3, "x": 0.5, "b": True, "s": "text", "l": ["a"], "m": {"k": 1}, "none": None, "huge": MAX_SIZE + 1}
)


def test_what_is_there_and_what_is_not() -> None:
    assert (VALUES.size("n"), VALUES.size("q", 7), VALUES.size("none", 7)) == (3, 7, 7)
    assert (VALUES.number("x", 1.0, low=0, high=1), VALUES.number("n", 1, low=0, high=9)) == (0.5, 3.0)
    assert (VALUES.flag("b"), VALUES.flag("q"), VALUES.flag("q", True)) == (True, False, True)
    assert (VALUES.text("s", ""), VALUES.text("q", "d")) == ("text", "d")
    assert (VALUES.texts("l"), VALUES.texts("q"), VALUES.mapping("m"), VALUES.mapping("q")) == (
        ["a"],
        [],
        {"k": 1},
        {},
    )
    assert VALUES.first_size(("q", "n")) == 3
    assert VALUES.is_absent("none") and VALUES.is_absent("q") and not VALUES.is_absent("n")


@pytest.mark.parametrize(
    ("look_up", "name"),
    [
        (lambda: VALUES.size("q"), "missing: q"),
        (lambda: VALUES.size("b"), "b must be an integer"),
        (lambda: VALUES.size("x"), "x must be an integer"),
        (lambda: VALUES.size("huge"), "huge"),
        (lambda: VALUES.size("n", low=4), "n must be an integer between 4"),
        (lambda: VALUES.number("s", 0, low=0, high=1), "s must be a number"),
        (lambda: VALUES.number("b", 0, low=0, high=1), "b must be a number"),
        (lambda: VALUES.number("n", 0, low=0, high=1), "n must be between"),
        (lambda: Values({"x": float("nan")}).number("x", 0, low=0, high=1), "x must be a number"),
        (lambda: VALUES.flag("n"), "n must be true or false"),
        (lambda: VALUES.text("n", ""), "n must be a string"),
        (lambda: VALUES.texts("s"), "s must be a list"),
        (lambda: Values({"l": [1]}).texts("l"), "l must be a list of strings"),
        (lambda: VALUES.mapping("l"), "l must be an object"),
        (lambda: VALUES.first_size(("p", "q")), "missing: p"),
    ],
)
def test_what_cannot_be_is_refused_by_name(look_up: Any, name: str) -> None:
    with pytest.raises(InvalidFtw, match=name):
        look_up()
