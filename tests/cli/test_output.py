"""Tables and styles, checked against text typed by hand."""

import io
import sys

import pytest
from terminal import TerminalStream

from ftd.cli import output


def test_a_table_pads_every_cell_with_four_spaces() -> None:
    assert output.table(("name", "id"), [("a", "12"), ("long", "3")]) == (
        "NAME    ID    \na       12    \nlong    3     "
    )


def test_a_table_without_headers_may_be_indented() -> None:
    assert output.table((), [("a", "b")], "  ") == "  a    b    "


def test_styles_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert output.styled("x", output.GREY, TerminalStream()) == "\x1b[90mx\x1b[0m"
    assert output.styled("x", output.GREY, io.StringIO()) == "x"
    monkeypatch.setenv("NO_COLOR", "1")
    assert output.styled("x", output.GREY, TerminalStream()) == "x"
    monkeypatch.setenv("TERM", "dumb")
    assert not output.has_style(TerminalStream())


def test_json_keeps_text_readable(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({"a": ["ä"]})
    assert capsys.readouterr().out == '{\n  "a": [\n    "ä"\n  ]\n}\n'


def test_notes_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    output.note("x")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "x\n")
    assert sys.stdout.isatty() is False
