"""The report of scripts/test-gpu, as a plugin of pytest: written while tests run, so that none of it is lost.

    what ran it, and for how long       a line a file: passed, skipped, failed, seconds
    failures and what they found        the slowest tests       those that were under way

FTD_GPU_REPORT names the file, FTD_GPU_REPORT_TITLE its first line. With several processes only the one that
collects results writes. A process whose card a test has broken ends: all that it ran later would fail.
"""

import os
import sys
import time
from pathlib import Path

import pytest

# The file is written no more often, but at the end
WRITE_S = 2.0
NUM_SLOWEST = 10


class Report:
    """Counts by file; results of one test (set-up, call, tear-down) are one."""

    def __init__(self, path: Path, title: str) -> None:
        self._path, self._title = path, title
        self._begin = self._written = time.monotonic()
        self._counts: dict[str, list[float]] = {}
        self._failures: list[str] = []
        self._failed: set[str] = set()
        self._seconds: dict[str, float] = {}
        self._running: dict[str, float] = {}

    @pytest.hookimpl
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Take a test that begins."""
        self._running[nodeid] = time.monotonic()

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take one part of a test's result; a test that ended its process has no more parts."""
        name = report.nodeid
        row = self._counts.setdefault(name.partition("::")[0], [0, 0, 0, 0.0])
        row[3] += report.duration
        self._seconds[name] = self._seconds.get(name, 0.0) + report.duration
        if report.failed and name not in self._failed:
            self._failed.add(name)
            row[2] += 1
            self._failures.append(f"FAILED {name}: {_reason(report)}")
        elif report.skipped:
            row[1] += 1
        elif report.passed and report.when == "call":
            row[0] += 1
        if report.when == "teardown" or report.when not in ("setup", "call"):
            self._running.pop(name, None)
        if time.monotonic() - self._written > WRITE_S:
            self.write("under way")

    @pytest.hookimpl
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Write what there is in the end."""
        self.write(f"ended with status {int(exitstatus)}")

    def write(self, state: str) -> None:
        """Write the file, whole or not at all."""
        self._written = now = time.monotonic()
        names = sorted(self._seconds, key=lambda name: -self._seconds[name])[:NUM_SLOWEST]
        total = [sum(row[column] for row in self._counts.values()) for column in range(3)]
        lines = [
            self._title,
            f"{state} after {now - self._begin:.0f} s",
            *(_line(name, row) for name, row in sorted(self._counts.items())),
            _line("all", [*total, sum(self._seconds.values())]),
            *self._failures,
            *(f"SLOW {self._seconds[name]:.1f} s {name}" for name in names),
            *(f"UNDER WAY for {now - since:.0f} s {name}" for name, since in self._running.items()),
        ]
        partial = self._path.with_name(f"{self._path.name}.partial")
        partial.write_text("\n".join(lines) + "\n")
        partial.replace(self._path)


class Worker:
    """Ends its process, which another replaces, after a failure that left the card unusable."""

    def __init__(self) -> None:
        self._has_failed = False

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take one part of a test's result."""
        self._has_failed = self._has_failed or report.failed

    @pytest.hookimpl
    def pytest_runtest_logfinish(self) -> None:
        """Look whether the card still answers."""
        torch = sys.modules.get("torch")
        if self._has_failed and torch is not None and torch.cuda.is_initialized():
            try:
                torch.cuda.synchronize()
            except RuntimeError as exc:
                print(f"the card is lost to this process: {exc}", file=sys.stderr, flush=True)
                os._exit(1)
        self._has_failed = False


def _line(name: str, row: list[float]) -> str:
    good, skipped, failed, seconds = row
    return f"{name:<52} {good:>5} passed {skipped:>4} skipped {failed:>4} failed {seconds:>8.1f} s"


def _reason(report: pytest.TestReport) -> str:
    """Return what a failure found, on one line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(report.longrepr) if crash is None else crash.message
    return " ".join(text.split())[:400]


def pytest_configure(config: pytest.Config) -> None:
    """Report in the process that has all results, guard the others."""
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(Worker(), "gpu-worker")
        return
    title = os.environ.get("FTD_GPU_REPORT_TITLE", "")
    report = Report(Path(os.environ["FTD_GPU_REPORT"]), title)
    config.pluginmanager.register(report, "gpu-report")
