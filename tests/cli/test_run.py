"""``ftd run``: one-shot, pipes, missing models, embeddings, interrupts."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fake_api import HANG, TIMEOUT_S, FakeApi
from terminal import killed_on_failure

ANSWER = [
    {"response": "Hel", "done": False},
    {"response": "lo", "done": False},
    {"response": "", "done": True, "done_reason": "stop", "eval_count": 2, "eval_duration": 80_000_000},
]


def test_a_prompt_is_answered_and_the_command_ends(process_cli, api: FakeApi) -> None:
    api.answers["POST /api/generate"] = ANSWER
    result = process_cli("run", "m", "why", "blue?")
    assert (result.returncode, result.stdout, result.stderr) == (0, "Hello\n\n", "")
    assert api.bodies("/api/generate") == [{"model": "m", "options": {}, "prompt": "why blue?"}]


def test_what_is_piped_goes_before_the_prompt(process_cli, api: FakeApi) -> None:
    api.answers["POST /api/generate"] = ANSWER
    process_cli("run", "m", "summarise", stdin="a text\nof two lines\n")
    process_cli("run", "m", stdin="only this")
    assert [body["prompt"] for body in api.bodies("/api/generate")] == [
        "a text\nof two lines summarise",
        "only this",
    ]


def test_nothing_asked_loads_the_model(cli, api: FakeApi) -> None:
    api.answers["POST /api/generate"] = {"done": True, "done_reason": "load"}
    result = cli("run", "--keepalive", "1h", "m")
    assert (result.returncode, result.stdout) == (0, "")
    assert api.bodies("/api/generate") == [
        {"model": "m", "options": {}, "keep_alive": "1h", "prompt": "", "stream": False}
    ]


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        (("--format", "json"), "format", "json"),
        (("--format", '{"type": "object"}'), "format", {"type": "object"}),
        (("--keepalive", "5m"), "keep_alive", "5m"),
        (("--keepalive", "-1"), "keep_alive", -1),
        (("--device", "cpu"), "options", {"device": "cpu"}),
        (("--think",), "think", True),
        (("--think=false",), "think", False),
        (("--think=high",), "think", "high"),
    ],
)
def test_flags_become_fields(cli, api: FakeApi, words: tuple[str, ...], field: str, value: object) -> None:
    api.answers["POST /api/show"] = {"capabilities": ["completion", "thinking"]}
    api.answers["POST /api/generate"] = ANSWER
    cli("run", "m", *words, "hello")
    assert api.bodies("/api/generate")[0][field] == value


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--format", "xml"), "error: invalid format: xml\nhint: use json or a JSON schema object\n"),
        (("--keepalive", "5x"), 'error: time: invalid duration "5x"\nhint: write it as 5m, 1h30m or 300ms\n'),
    ],
)
def test_bad_values_are_wrong_usage(cli, api: FakeApi, words: tuple[str, ...], error: str) -> None:
    result = cli("run", "m", *words, "hello")
    assert (result.returncode, result.stderr) == (2, error)
    assert api.requests == []


def test_verbose_prints_timings_on_standard_error(cli, api: FakeApi) -> None:
    api.answers["POST /api/generate"] = ANSWER
    result = cli("run", "--verbose", "m", "hello")
    assert result.stdout == "Hello\n\n"
    assert result.stderr.splitlines()[-1] == "eval rate:            25.00 tokens/s"


@pytest.mark.parametrize(
    ("lost", "told"),
    [
        ({}, ""),
        ({"truncated_tokens": 900}, "900 tokens of the prompt were left out"),
        ({"shifted_tokens": 7}, "7 tokens of what came first were left out"),
        (
            {"truncated_tokens": 900, "shifted_tokens": 7},
            "900 tokens of the prompt were left out, 7 tokens of what came first were left out",
        ),
    ],
)
def test_what_did_not_fit_the_window_is_told(cli, api: FakeApi, lost: dict[str, int], told: str) -> None:
    """As of a long file through a pipe; the answer is to a part of it."""
    api.answers["POST /api/generate"] = [*ANSWER[:-1], {**ANSWER[-1], **lost}]
    result = cli("run", "m", stdin="a long text")
    assert result.stdout == "Hello\n\n"
    warning = f"warning: the context window was too small: {told} (num_ctx, FTD_CONTEXT_LENGTH)\n"
    assert result.stderr == (warning if told else "")


@pytest.mark.parametrize("name", ["./weights", "Model.gguf", "/nowhere/model.gguf"])
def test_a_file_is_made_a_model_first(cli, api: FakeApi, tmp_path: Path, name: str) -> None:
    api.answers["POST /api/generate"] = ANSWER
    assert cli("run", name, "hello").returncode == 0, "what is no file may be a model"
    if not name.startswith("/"):
        path = tmp_path / name
        path.touch()
        result = cli("run", name, "hello")
        assert result.returncode == 1
        assert result.stderr == (
            f"error: a file is no model yet: {name}\n"
            f"hint: make one of it: echo 'FROM {path}' | ftd create NAME -f -\n"
        )


def test_thinking_is_shown_or_hidden(cli, api: FakeApi) -> None:
    api.answers["POST /api/show"] = {"capabilities": ["completion", "thinking"]}
    api.answers["POST /api/generate"] = [{"response": "", "thinking": "hmm"}, *ANSWER]
    assert cli("run", "m", "x").stdout == "Thinking...\nhmm\n...done thinking.\n\nHello\n\n"
    assert cli("run", "--hidethinking", "m", "x").stdout == "Hello\n\n"


def test_thinking_asked_of_a_model_that_cannot_warns(cli, api: FakeApi) -> None:
    api.answers["POST /api/generate"] = ANSWER
    result = cli("run", "--think", "m", "x")
    assert (result.returncode, result.stdout) == (0, "Hello\n\n")
    assert result.stderr == 'warning: model "m" does not support thinking output\n'
    assert "think" not in api.bodies("/api/generate")[0]


def test_a_missing_model_is_pulled(cli, api: FakeApi) -> None:
    shows = iter([(404, {"error": "model 'm' not found"}), {"capabilities": ["completion"]}])
    api.answers["POST /api/show"] = lambda body: next(shows)
    api.answers["POST /api/pull"] = [{"status": "pulling manifest"}, {"status": "success"}]
    api.answers["POST /api/generate"] = ANSWER
    result = cli("run", "--insecure", "m", "hello")
    assert (result.returncode, result.stdout) == (0, "Hello\n\n")
    assert result.stderr == "model 'm' not found: pulling it\npulling manifest\nsuccess\n"
    assert api.bodies("/api/pull") == [{"model": "m", "insecure": True}]


def test_a_model_that_nobody_has_fails(cli, api: FakeApi) -> None:
    api.answers["POST /api/show"] = (404, {"error": "model 'm' not found"})
    api.answers["POST /api/pull"] = [{"error": "pull model manifest: file does not exist"}]
    result = cli("run", "m", "hello")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.endswith("error: pull model manifest: file does not exist\n")


def test_an_embedding_model_prints_one_line_of_json(cli, api: FakeApi) -> None:
    api.answers["POST /api/show"] = {"capabilities": ["embedding"]}
    api.answers["POST /api/embed"] = {"embeddings": [[0.5, -1.0]]}
    result = cli("run", "m", "--dimensions", "2", "some text")
    assert json.loads(result.stdout) == [0.5, -1.0] and result.stdout.count("\n") == 1
    assert api.bodies("/api/embed") == [{"model": "m", "input": "some text", "options": {}, "dimensions": 2}]
    result = cli("run", "m")
    assert result.returncode == 2
    assert result.stderr == 'error: embedding models require input text\nhint: ftd run m "your text here"\n'


def test_an_error_in_the_middle_exits_with_1(process_cli, api: FakeApi) -> None:
    api.answers["POST /api/generate"] = [ANSWER[0], {"error": "the engine died"}]
    result = process_cli("run", "m", "x")
    assert result.returncode == 1 and result.stdout.startswith("Hel")
    assert result.stderr == "error: the engine died\n"


def test_an_interrupt_aborts_the_generation(api: FakeApi, environment: dict[str, str]) -> None:
    api.answers["POST /api/generate"] = [ANSWER[0], HANG]
    process = subprocess.Popen(
        [sys.executable, "-m", "ftd", "run", "m", "x"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    with process, killed_on_failure(process):
        assert process.stdout is not None and process.stdout.read(3) == "Hel"
        process.send_signal(signal.SIGINT)
        output, error = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, output, error) == (130, "\n\n", "")
    assert api.disconnected.wait(TIMEOUT_S), "the daemon must see that the client left"


def test_words_wrap_at_a_terminal_only(terminal, cli, api: FakeApi) -> None:
    words = "word " * 40
    api.answers["POST /api/generate"] = [{"response": words, "done": True}]
    shown, code = terminal("run", "m", "x").end()
    assert code == 0
    lines = [line for line in shown.split("\r")[-1].removeprefix("\x1b[K").split("\n") if "word" in line]
    assert len(lines) == 3 and all(len(line) <= 75 for line in lines)
    plain, _ = terminal("run", "--nowordwrap", "m", "x").end()
    assert words.strip() in plain
    assert cli("run", "m", "x").stdout == words + "\n\n"
