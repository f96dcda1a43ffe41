"""scripts/test-gpu without a card: its report of tests that fail, hang, end their process or are cut off."""

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from script_module import load_script

SCRIPT = Path(__file__).parents[2] / "scripts" / "test-gpu"
TESTS = """
import os, threading
import pytest

def test_good():
    pass

@pytest.mark.skip
def test_skipped():
    pass

def test_bad():
    assert 2 + 2 == 5, "sums are wrong"

@pytest.fixture
def broken():
    raise ValueError("nothing to test with")

def test_without_its_fixture(broken):
    pass

def test_that_ends_its_process():
    os._exit(3)

def test_that_hangs():
    if "STARTED" in os.environ:
        with open(os.environ["STARTED"], "w") as started:
            started.write("now")
            started.flush()
            threading.Event().wait()
    threading.Event().wait()
"""


Run = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module."""
    return load_script(monkeypatch, "test-gpu")


@pytest.fixture
def run(script: ModuleType, tmp_path: Path) -> Iterator[Run]:
    """Return what runs tests as the script does; it returns the status and the report's lines."""
    before = signal.getsignal(signal.SIGTERM)

    def run(limit: int, timeout: int, *arguments: str) -> tuple[int, list[str]]:
        tests, report = tmp_path / "test_some.py", tmp_path / "report.txt"
        tests.write_text(TESTS)
        options = argparse.Namespace(report=report, jobs=2, limit=limit, timeout=timeout, tests=[str(tests)])
        status = script.run(options, ["-p", "no:cacheprovider", *arguments], "a card, 2 processes")
        return status, report.read_text().splitlines()

    yield run
    signal.signal(signal.SIGTERM, before)


@pytest.mark.slow
def test_every_test_has_its_result(run: Run) -> None:
    status, lines = run(100, 4)
    assert status == 1
    assert lines[0] == "a card, 2 processes" and lines[1].startswith("ended with status 1 after")
    (counts,) = [line for line in lines if line.startswith("all")]
    assert counts.split()[1:7] == ["1", "passed", "1", "skipped", "4", "failed"]
    failed = {line.split("::")[1].split(":")[0]: line for line in lines if line.startswith("FAILED")}
    assert set(failed) == {
        "test_bad",
        "test_without_its_fixture",
        "test_that_ends_its_process",
        "test_that_hangs",
    }
    assert "sums are wrong" in failed["test_bad"]
    assert "nothing to test with" in failed["test_without_its_fixture"]
    assert "crashed" in failed["test_that_hangs"]
    assert not any(line.startswith("UNDER WAY") for line in lines)


@pytest.mark.slow
def test_a_run_that_is_stopped_leaves_a_report_and_no_process(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = tmp_path / "started"
    os.mkfifo(started)
    monkeypatch.setenv("STARTED", str(started))
    said: list[str] = []

    def stop() -> None:
        with started.open() as test:
            said.append(test.read(3))
            signal.raise_signal(signal.SIGTERM)
            said.append(test.read())  # what the test has open is closed with its process

    thread = threading.Thread(target=stop)
    thread.start()
    status, lines = run(100, 100, "-k", "hangs")
    thread.join()
    assert status == 130 and said == ["now", ""]
    assert lines[1].startswith("ended with status 2 after")


def test_tests_that_have_not_ended_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import gpu_report  # type: ignore[import-not-found]

    report = gpu_report.Report(tmp_path / "report.txt", "a card")
    for name in ("a.py::first", "a.py::second"):
        report.pytest_runtest_logstart(name)
    for part in ("setup", "call", "teardown"):
        report.pytest_runtest_logreport(
            pytest.TestReport("a.py::first", ("a.py", 1, ""), {}, "passed", None, part, duration=1.5)
        )
    report.write("cut off")
    lines = (tmp_path / "report.txt").read_text().splitlines()
    assert lines[:2] == ["a card", "cut off after 0 s"]
    assert lines[2].split() == ["a.py", "1", "passed", "0", "skipped", "0", "failed", "4.5", "s"]
    assert lines[4:] == ["SLOW 4.5 s a.py::first", "UNDER WAY for 0 s a.py::second"]
    del sys.modules["gpu_report"]


def test_whole_models_come_first_and_none_is_forgotten(script: ModuleType) -> None:
    files = [Path(name) for name in script.every_test()]
    assert all(file.exists() for file in files) and len(set(files)) == len(files)
    assert [f"engine/{file.name}" for file in files[: len(script.FIRST)]] == list(script.FIRST)
    tests = SCRIPT.parents[1] / "tests"
    every = [path for folder in ("engine", "kernels") for path in (tests / folder).glob("test_*.py")]
    marked = {
        path for path in every if "pytest.mark.gpu" in path.read_text() and path.name != Path(__file__).name
    }
    assert len(marked) > 5 and marked <= set(files)
