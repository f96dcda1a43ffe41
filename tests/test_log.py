"""Log lines: one an event, parseable, on standard error only."""

import logging

import pytest

from ftd import log


def test_fields_are_key_value_pairs_in_order() -> None:
    line = log.fields("load done", model="m:1", bytes=12, seconds=9.4321, why="two words")
    assert line == "load done model=m:1 bytes=12 seconds=9.43 why='two words'"


def test_configure_sends_the_level_and_above_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        log.configure("warning")
        logging.getLogger("ftd.test").info("quiet")
        logging.getLogger("ftd.test").warning("loud key=1")
    finally:
        root.handlers[:], root.level = before
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.rstrip().endswith("WARNING ftd.test loud key=1")
