"""The parser of one verb."""

import pytest

from ftd.cli.usage import Parser
from ftd.errors import InvalidOption


def test_an_error_raises_and_points_to_the_help() -> None:
    with pytest.raises(InvalidOption) as caught:
        Parser("cp", "copy").parse(["x"])
    assert caught.value.message == "unrecognized arguments: x"
    assert caught.value.hint == "ftd cp --help"


def test_help_shows_a_value_once(capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser("x", "do a thing")
    parser.add_argument("-f", "--file", metavar="FILE", help="a file")
    with pytest.raises(SystemExit):
        parser.parse(["-h"])
    assert "  -f, --file FILE  a file\n" in capsys.readouterr().out


def test_options_are_not_abbreviated() -> None:
    parser = Parser("x", "do a thing")
    parser.add_argument("--verbose", action="store_true")
    with pytest.raises(InvalidOption):
        parser.parse(["--verb"])
