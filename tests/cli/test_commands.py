"""The table of commands: golden help, every row's module, parsing."""

import importlib
from pathlib import Path

import pytest

from ftd.cli import commands
from ftd.errors import InvalidOption

GOLDEN = Path(__file__).parents[1] / "golden" / "cli-help.txt"


def all_help(capsys: pytest.CaptureFixture[str]) -> str:
    parts = [f"$ ftd --help\n{commands.overview()}\n"]
    for command in commands.COMMANDS:
        with pytest.raises(SystemExit):
            commands.parse(command, ["--help"])
        parts.append(f"$ ftd {command.name} --help\n{capsys.readouterr().out}")
    return "\n".join(parts)


def test_help_is_golden(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert all_help(capsys) == GOLDEN.read_text("utf-8")


@pytest.mark.parametrize("command", commands.COMMANDS, ids=lambda command: command.name)
def test_every_command_has_a_module_that_runs_it(command: commands.Command) -> None:
    assert callable(importlib.import_module(command.module).run)


def test_names_and_aliases_are_unique() -> None:
    names = [name for command in commands.COMMANDS for name in (command.name, *command.aliases)]
    assert len(set(names)) == len(names)


def parse(*words: str):  # type: ignore[no-untyped-def]
    command = commands.find(words[0])
    assert command is not None
    return commands.parse(command, list(words[1:]))


@pytest.mark.parametrize(
    "words",
    [
        ("run", "m", "why", "blue", "--verbose"),
        ("run", "--verbose", "m", "why", "blue"),
        ("run", "m", "--verbose", "why", "blue"),
        ("run", "m", "why", "--verbose", "blue"),
    ],
)
def test_options_may_stand_anywhere_around_a_prompt(words: tuple[str, ...]) -> None:
    options = parse(*words)
    assert (options.model, options.prompt, options.verbose) == ("m", ["why", "blue"], True)


@pytest.mark.parametrize(
    ("words", "think"),
    [((), None), (("--think",), "true"), (("--think=high",), "high"), (("--think=false",), "false")],
)
def test_plain_think_takes_no_word_of_the_prompt(words: tuple[str, ...], think: str | None) -> None:
    options = parse("run", "m", *words, "hello")
    assert (options.think, options.prompt) == (think, ["hello"])


def test_after_two_dashes_all_is_prompt() -> None:
    assert parse("run", "m", "--", "--verbose", "--think").prompt == ["--verbose", "--think"]


def test_a_bad_level_of_thinking_is_refused() -> None:
    with pytest.raises(InvalidOption, match="invalid choice: 'x'"):
        parse("run", "m", "--think=x")


def test_aliases_find_their_command() -> None:
    assert [commands.find(name).name for name in ("ls", "start", "list")] == ["list", "serve", "list"]  # type: ignore[union-attr]
    assert commands.find("nothing") is None
