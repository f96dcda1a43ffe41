"""The real command line, run in processes of its own against a fake of the daemon's API."""

import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_api import TIMEOUT_S, FakeApi
from terminal import Terminal

from ftd.cli.main import main


@pytest.fixture
def api() -> Iterator[FakeApi]:
    """A fake daemon, listening."""
    fake = FakeApi()
    yield fake
    fake.close()


Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def environment(api: FakeApi, tmp_path: Path) -> dict[str, str]:
    """The environment of the commands: the fake as daemon, a home of its own."""
    return {
        **os.environ,
        "FTD_HOST": f"127.0.0.1:{api.port}",
        "FTD_HOME": str(tmp_path / "ftd-home"),
        "TERM": "xterm",
        "PROMPT_TOOLKIT_NO_CPR": "1",
        "PYTHONWARNINGS": "error",
    }


@pytest.fixture
def process_cli(environment: dict[str, str], tmp_path: Path) -> Cli:
    """Run ``ftd WORDS…`` in a process of its own with pipes; ``stdin`` is text, ``env`` more variables."""

    def run(*words: str, stdin: str = "", env: dict[str, str] | None = None) -> Any:
        return subprocess.run(
            [sys.executable, "-m", "ftd", *words],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            cwd=tmp_path,
            env=environment | (env or {}),
            check=False,
        )

    return run


@pytest.fixture
def cli(environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The same in this process, which is faster, for what does not depend on the process."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str, stdin: str = "", env: dict[str, str] | None = None) -> Any:
        with monkeypatch.context() as patched:
            for name, value in (environment | (env or {})).items():
                patched.setenv(name, value)
            patched.setattr(sys, "stdin", io.StringIO(stdin))
            patched.setattr(sys, "stdout", output := io.StringIO())
            patched.setattr(sys, "stderr", errors := io.StringIO())
            try:
                code = main(words)
            except SystemExit as exc:
                code = int(exc.code or 0)
        return subprocess.CompletedProcess(words, code, output.getvalue(), errors.getvalue())

    return run


@pytest.fixture
def terminal(environment: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """Start ``ftd WORDS…`` at a terminal."""
    opened: list[Terminal] = []

    def start(*words: str, env: dict[str, str] | None = None) -> Terminal:
        opened.append(Terminal(words, environment | (env or {}), tmp_path))
        return opened[-1]

    yield start
    for each in opened:
        each.close()
