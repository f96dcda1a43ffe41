"""Scripts of the shell say what they do when asked, and then do nothing."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(path for path in (ROOT / "scripts").iterdir() if path.is_file())
SHELL = [path for path in FILES if path.read_bytes().startswith(b"#!/usr/bin/env bash")]


@pytest.mark.parametrize("script", SHELL, ids=lambda path: path.name)
def test_help_is_what_stands_at_the_top(script: Path) -> None:
    done = subprocess.run([script, "--help"], capture_output=True, text=True, check=True, timeout=20)
    first = script.read_text("utf-8").splitlines()[1]
    assert done.stdout.splitlines()[0] == first.removeprefix("# ") and done.stderr == ""
