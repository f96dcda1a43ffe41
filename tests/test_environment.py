"""What the environment says, and that nothing else reads it."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import ftd
from ftd import environment


def test_nothing_else_reads_the_environment() -> None:
    package = Path(ftd.__file__).parent
    sources = [*package.rglob("*.py"), *package.rglob("*.pyx"), *(package / "kernels/src").iterdir()]
    reading = re.compile(r"os\.(environ|getenv)|\bgetenv\(")
    readers = {path.name for path in sources if reading.search(path.read_text("utf-8"))}
    assert len(sources) > 300
    assert readers == {"environment.py"}


@pytest.mark.parametrize(
    ("variable", "asked"), [("FTD_ISA", environment.isa), ("FTD_KERNELS", environment.kernels)]
)
def test_switches_are_empty_unless_set(
    monkeypatch: pytest.MonkeyPatch, variable: str, asked: Callable[[], str]
) -> None:
    monkeypatch.delenv(variable, raising=False)
    assert asked() == ""
    monkeypatch.setenv(variable, "scalar")
    assert asked() == "scalar"


def test_folders_follow_their_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/a")
    monkeypatch.delenv("XDG_CONFIG_HOME")
    assert environment.state_dir() == Path("/home/a/.ftd")
    assert environment.systemd_dir() == Path("/home/a/.config/systemd/user")
    monkeypatch.setenv("FTD_HOME", "~/elsewhere")
    # The XDG specification: an empty variable is one that is not set
    monkeypatch.setenv("XDG_CONFIG_HOME", "")
    assert environment.state_dir() == Path("/home/a/elsewhere")
    assert environment.systemd_dir() == Path("/home/a/.config/systemd/user")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/etc/of/mine")
    assert environment.systemd_dir() == Path("/etc/of/mine/systemd/user")


@pytest.mark.parametrize(("value", "wanted"), [(None, True), ("", True), ("1", False), ("0", False)])
def test_no_color_counts_when_it_is_not_empty(
    monkeypatch: pytest.MonkeyPatch, value: str | None, wanted: bool
) -> None:
    """As no-color.org has it: present and not an empty string, whatever the value."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    if value is not None:
        monkeypatch.setenv("NO_COLOR", value)
    assert environment.wants_color() is wanted


def test_a_dumb_terminal_is_named_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert environment.is_terminal_dumb()
    monkeypatch.setenv("TERM", "xterm-256color")
    assert not environment.is_terminal_dumb()


def test_openblas_gets_one_thread_unless_somebody_wants_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    assert environment.prepared()["OPENBLAS_NUM_THREADS"] == "3"
    monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    assert environment.prepared()["OPENBLAS_NUM_THREADS"] == "1"
    assert os.environ["OPENBLAS_NUM_THREADS"] == "1"


def test_nothing_is_run_that_lies_in_the_working_folder(tmp_path: Path) -> None:
    """A daemon may be started in any folder; who filled that folder must not choose what it runs."""
    for name in ("json", "logging", "queue", "numpy", "msgspec"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('of the project')\n")
    plain = (sys.executable, "-m", "ftd.engine.probe")
    results = [
        subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        for command in (environment.module_command("ftd.engine.probe"), plain)
    ]
    assert json.loads(results[0].stdout)["isa"]
    assert "of the project" in results[1].stderr


def test_every_module_is_run_that_way() -> None:
    sources = list(Path(ftd.__file__).parent.rglob("*.py"))
    careless = re.compile(r'sys\.executable,\s*"-m"')
    assert not [path.name for path in sources if careless.search(path.read_text("utf-8"))]
