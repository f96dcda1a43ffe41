"""``ftd serve`` as a process, and a command that starts one: the real daemon, no model."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_api import TIMEOUT_S
from ports import free_port
from terminal import killed_on_failure

import ftd


@pytest.fixture
def free_environment(environment: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """An address where nothing listens and an empty store."""
    environment.pop("PYTHONWARNINGS")
    return environment | {"FTD_HOST": f"127.0.0.1:{free_port()}", "FTD_MODELS": str(tmp_path / "models")}


def ftd_run(env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ftd", *words]
    # Input that is no terminal belongs to the prompt: what the tests were given is not to be waited for
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=env,
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.fixture
def background(free_environment: dict[str, str]) -> Iterator[dict[str, str]]:
    """Ends the daemon that the test starts; its process id is found through its session's log."""
    yield free_environment
    port = free_environment["FTD_HOST"].rsplit(":", 1)[1]
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environ = (folder / "environ").read_bytes().split(b"\0")
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"FTD_HOST=127.0.0.1:{port}".encode() in environ and b"serve" in words:
            os.kill(int(folder.name), signal.SIGTERM)


def test_a_command_starts_the_daemon_and_the_next_one_uses_it(background: dict[str, str]) -> None:
    first = ftd_run(background, "list", "--json")
    log = Path(background["FTD_HOME"]) / "serve.log"
    assert (first.returncode, first.stdout) == (0, "[]\n")
    assert first.stderr == f"starting the daemon: http://{background['FTD_HOST']}, log {log}\n"
    second = ftd_run(background, "list", "--json")
    assert (second.returncode, second.stdout, second.stderr) == (0, "[]\n", "")
    assert "listening" in log.read_text()


def test_serve_says_where_it_listens_and_ends_on_a_signal(free_environment: dict[str, str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "ftd", "serve", "--log-level", "info"],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=free_environment,
    )
    with process, killed_on_failure(process):
        assert process.stderr is not None
        line = next(line for line in process.stderr if "listening" in line)
        assert re.search(rf"listening address={free_environment['FTD_HOST']} version={ftd.__version__}", line)
        taken = ftd_run(free_environment, "serve")
        assert taken.returncode == 1
        assert taken.stderr.startswith(
            f"error: the address is in use: {free_environment['FTD_HOST']}, by another ftd"
        )
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, output) == (0, "")


def test_a_bad_flag_is_wrong_usage(free_environment: dict[str, str]) -> None:
    result = ftd_run(free_environment, "serve", "--max-queue", "0")
    assert (result.returncode, result.stderr) == (
        2,
        "error: --max-queue must be between 1 and 1000000: 0\n",
    )


def test_missing_models_fail_alike_in_every_verb(background: dict[str, str]) -> None:
    for words in (("show", "nosuch"), ("rm", "nosuch"), ("cp", "nosuch", "x")):
        result = ftd_run(background, *words)
        assert result.returncode == 1 and "not found" in result.stderr, words
    assert json.loads(ftd_run(background, "ps", "--json").stdout) == []


@pytest.mark.slow
def test_a_real_model_from_its_file_to_an_answer(
    background: dict[str, str], smollm2_gguf: Path, tmp_path: Path
) -> None:
    modelfile = tmp_path / "Modelfile"
    modelfile.write_text(f"FROM {smollm2_gguf}\nPARAMETER temperature 0\nPARAMETER num_predict 9\n")
    created = ftd_run(background, "create", "smollm2", "-f", str(modelfile))
    assert created.returncode == 0 and created.stderr.endswith("success\n")
    assert ftd_run(background, "list", "-q").stdout == "smollm2:latest\n"
    answer = ftd_run(background, "run", "--verbose", "smollm2", "What is the capital of France?")
    # As llama.cpp answers; without a limit the text goes on to the end of the window
    assert answer.stdout.startswith("The capital of France is Paris") and "eval rate:" in answer.stderr
    (loaded,) = json.loads(ftd_run(background, "ps", "--json").stdout)
    assert loaded["name"] == "smollm2:latest"
    memory = loaded["memory"]
    assert min(memory[f"{part}_bytes"] for part in ("weight", "kv", "workspace")) > 0
    assert f"smollm2:latest: on {memory['place']}" in ftd_run(background, "ps").stderr
    assert ftd_run(background, "stop", "smollm2").returncode == 0
    assert "architecture        llama" in ftd_run(background, "show", "smollm2").stdout
    bench = ("bench", "smollm2", "--prompt-tokens", "16", "--decode-tokens", "4", "--json")
    assert json.loads(ftd_run(background, *bench).stdout)["decode_tokens_per_s"] > 0
    assert ftd_run(background, "rm", "smollm2").stdout == "deleted 'smollm2'\n"
