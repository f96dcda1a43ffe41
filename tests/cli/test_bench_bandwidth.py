"""``ftd bench bandwidth``: which file it reads, what it prints, and what it says when measuring fails."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ftd.cli import bench_bandwidth
from ftd.cli.bench_bandwidth import format_table, largest_blob


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Have the measuring process print what is given; @ in it becomes its arguments."""

    def prints(text: str, end: str = "") -> None:
        program = f"import json, sys; print({text!r}.replace('@', json.dumps(sys.argv[1:])[1:-1])); {end}"
        monkeypatch.setattr(bench_bandwidth, "COMMAND", (sys.executable, "-c", program))

    return prints


def test_bandwidth_reads_the_largest_blob_and_prints_rates(cli, rates, tmp_path: Path) -> None:
    blobs = tmp_path / "models" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "sha256-aa").write_bytes(b"1")
    (blobs / "sha256-bb").write_bytes(b"22")
    (blobs / "staged-1").write_bytes(b"333")
    rates('{"rows": [{"name": "memory read", "bytes_per_s": 1.5e10, "note": "n"}], "arguments": [@]}')
    env = {"FTD_MODELS": str(tmp_path / "models")}
    assert json.loads(cli("bench", "bandwidth", "--json", env=env).stdout)["arguments"] == [
        str(blobs / "sha256-bb")
    ]
    assert cli("bench", "bandwidth", env=env).stdout == "memory read    15.00 GB/s  n\n"


def test_bandwidth_says_what_failed(cli, rates, tmp_path: Path) -> None:
    env = {"FTD_MODELS": str(tmp_path / "models")}
    rates('{"rows": [], "error": "no card", "hint": "buy one"}')
    result = cli("bench", "bandwidth", env=env)
    assert (result.returncode, result.stderr) == (1, "error: no card\nhint: buy one\n")
    rates("no JSON", "sys.exit(3)")
    result = cli("bench", "bandwidth", env=env)
    assert (result.returncode, result.stderr) == (1, "error: measuring ended with code 3\n")


def test_a_process_that_dies_is_told_by_its_last_line(cli, rates, tmp_path: Path) -> None:
    rates("", "print('Traceback', file=sys.stderr); sys.exit('MemoryError: no room')")
    result = cli("bench", "bandwidth", env={"FTD_MODELS": str(tmp_path / "models")})
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "error: MemoryError: no room\n"


def test_rates_that_came_before_a_failure_are_printed(cli, rates, tmp_path: Path) -> None:
    rates('{"rows": [{"name": "a", "bytes_per_s": 2e9, "note": ""}], "error": "e", "hint": "h"}')
    result = cli("bench", "bandwidth", env={"FTD_MODELS": str(tmp_path / "models")})
    assert (result.returncode, result.stdout) == (1, "a     2.00 GB/s\n")


def test_a_store_without_models_is_noted(cli, rates, tmp_path: Path) -> None:
    rates('{"rows": [], "arguments": [@]}')
    result = cli("bench", "bandwidth", "--json", env={"FTD_MODELS": str(tmp_path / "models")})
    assert json.loads(result.stdout)["arguments"] == []
    assert (result.returncode, result.stderr) == (0, "the store has no model to read from the disk\n")


def test_names_are_padded_and_units_stand_below_each_other() -> None:
    rows = [
        {"name": "memory", "bytes_per_s": 123.456e9, "note": "2 threads"},
        {"name": "disk read", "bytes_per_s": 1.5e9, "note": ""},
    ]
    assert format_table(rows).splitlines() == [
        "memory      123.46 GB/s  2 threads",
        "disk read     1.50 GB/s",
    ]
    assert format_table([]) == ""


def test_only_whole_blobs_count(tmp_path: Path) -> None:
    assert largest_blob(tmp_path) is None
    blobs = tmp_path / "blobs"
    (blobs / "sha256-folder").mkdir(parents=True)
    (blobs / "sha256-a").write_bytes(b"12")
    (blobs / "sha256-b").write_bytes(b"1")
    (blobs / "staged-x").write_bytes(b"123")
    assert largest_blob(tmp_path) == blobs / "sha256-a"
