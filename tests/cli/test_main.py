"""The entry point: exit codes, error texts, what it imports, how fast it answers."""

import resource
import subprocess
import sys

import pytest
from fake_api import FakeApi, model

import ftd
from ftd.cli import main as main_module
from ftd.errors import FtdError, InvalidOption, ModelNotFound


def imported(*words: str, env: dict[str, str] | None = None) -> set[str]:
    """Return the top-level modules that ``ftd WORDS…`` loads."""
    result = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "ftd", *words],
        capture_output=True,
        text=True,
        env=env,
        check=True,
    )
    lines = [line for line in result.stderr.splitlines() if line.startswith("import time:")]
    return {line.rsplit("|", 1)[1].strip().split(".")[0] for line in lines}


HEAVY = {
    "torch",
    "numpy",
    "aiohttp",
    "asyncio",
    "jinja2",
    "tokenizers",
    "prompt_toolkit",
    "msgspec",
    "psutil",
}


def test_help_imports_nothing_heavy_and_no_argparse() -> None:
    assert imported("--help").isdisjoint({*HEAVY, "argparse"})


def test_list_imports_nothing_heavy(api: FakeApi, environment: dict[str, str]) -> None:
    api.answers["GET /api/tags"] = {"models": [model("m:latest")]}
    environment.pop("PYTHONWARNINGS")
    assert imported("list", env=environment).isdisjoint(HEAVY)


def test_help_answers_in_less_than_150_ms() -> None:
    def seconds() -> float:
        # Of the processor: it waits for nothing, and others on the machine do not count
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "ftd", "--help"], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(seconds() for _ in range(5)) < 0.15


def test_no_command_prints_the_overview(process_cli) -> None:
    result = process_cli()
    assert result.returncode == 0 and result.stdout.startswith("usage: ftd COMMAND")


def test_help_of_a_command_either_way(cli) -> None:
    assert cli("help", "cp").stdout == cli("cp", "-h").stdout == cli("cp", "--help").stdout != ""


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("lst",), "error: unknown command: lst\nhint: ftd list\n"),
        (("xyzzy",), "error: unknown command: xyzzy\nhint: ftd --help\n"),
        (("cp", "a"), "error: the following arguments are required: DESTINATION\nhint: ftd cp --help\n"),
        (("list", "--nope"), "error: unrecognized arguments: --nope\nhint: ftd list --help\n"),
        (("run",), "error: the following arguments are required: MODEL\nhint: ftd run --help\n"),
    ],
)
def test_wrong_usage_exits_with_2(cli, words: tuple[str, ...], error: str) -> None:
    result = cli(*words)
    assert (result.returncode, result.stdout, result.stderr) == (2, "", error)


def test_a_bad_setting_exits_with_2(process_cli) -> None:
    result = process_cli("list", env={"FTD_MAX_QUEUE": "0"})
    assert result.returncode == 2
    assert result.stderr == "error: FTD_MAX_QUEUE must be between 1 and 1000000: 0\n"


def test_a_failed_request_exits_with_1_and_says_why(process_cli, api: FakeApi) -> None:
    api.answers["POST /api/show"] = (404, {"error": "model 'nosuch' not found", "hint": "ftd pull nosuch"})
    result = process_cli("show", "nosuch")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "error: model 'nosuch' not found\nhint: ftd pull nosuch\n"


def test_a_reader_that_leaves_is_no_error(api: FakeApi, environment: dict[str, str]) -> None:
    api.answers["GET /api/tags"] = {"models": [model(f"m{i}:latest") for i in range(5000)]}
    result = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m ftd list | head -1"],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    assert result.stdout.startswith("NAME") and result.stderr == ""


@pytest.mark.parametrize(
    ("error", "code"), [(FtdError("x"), 1), (ModelNotFound("x"), 1), (InvalidOption("x"), 2)]
)
def test_exit_codes_follow_the_class(monkeypatch: pytest.MonkeyPatch, error: FtdError, code: int) -> None:
    def fail(words: list[str]) -> int:
        raise error

    monkeypatch.setattr(main_module, "_run", fail)
    assert main_module.main([]) == code


def test_an_interrupt_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(words: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(main_module, "_run", interrupt)
    assert main_module.main([]) == 130


def test_an_error_of_the_system_names_the_file(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(main_module, "_run", lambda words: open("/nonexistent/file"))  # noqa: SIM115
    assert main_module.main([]) == 1
    assert capsys.readouterr().err == "error: No such file or directory: /nonexistent/file\n"


def test_version_flag_is_the_version_command(cli) -> None:
    assert cli("--version").stdout == cli("version").stdout != ""
    assert f"ftd version is {ftd.__version__}" in cli("-v").stdout


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_are_empty(closed: str, api: FakeApi, environment: dict[str, str]) -> None:
    """As under some supervisors, or in a script with ``<&-``."""
    api.answers["POST /api/generate"] = [{"response": "Hello"}, {"done": True}]
    command = f'exec "{sys.executable}" -m ftd run m hi {closed}'
    result = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, env=environment, check=False
    )
    assert result.returncode == 0, result.stderr
    said = "Hello\n\n" if closed in ("<&-", "2>&-") else ""
    assert (result.stdout, result.stderr) == (said, "")


def test_an_answer_may_have_any_character(process_cli, api: FakeApi) -> None:
    api.answers["POST /api/generate"] = [{"response": "caf\u00e9 \u6f22 "}, {"response": "!"}, {"done": True}]
    result = process_cli("run", "m", "hi", env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert (result.returncode, result.stdout) == (0, "caf? ? !\n\n")
