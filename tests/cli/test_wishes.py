"""Words of `ftd run` become fields of the API."""

import pytest

from ftd.cli.wishes import parse_format, parse_keep_alive, parse_think
from ftd.errors import InvalidOption


@pytest.mark.parametrize(
    ("text", "value"), [(None, None), ("5m", "5m"), ("300", 300), ("-1", -1), ("0.5", 0.5)]
)
def test_keep_alive(text: str | None, value: object) -> None:
    assert parse_keep_alive(text) == value


def test_a_bad_keep_alive() -> None:
    with pytest.raises(InvalidOption, match="invalid duration"):
        parse_keep_alive("soon")


@pytest.mark.parametrize(("text", "value"), [(None, None), ("true", True), ("false", False), ("low", "low")])
def test_think(text: str | None, value: object) -> None:
    assert parse_think(text) == value


@pytest.mark.parametrize("text", ["", "JSON", "[1]", "{"])
def test_a_bad_format(text: str) -> None:
    with pytest.raises(InvalidOption, match="invalid format"):
        parse_format(text)
