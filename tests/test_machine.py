"""Free memory against psutil, and against a file written by hand."""

from pathlib import Path

import psutil
import pytest

from ftd import machine


def test_it_is_what_psutil_says() -> None:
    assert machine.available_bytes() == pytest.approx(psutil.virtual_memory().available, rel=0.2)


def test_kilobytes_become_bytes(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       16 kB\nMemAvailable:   3 kB\n")
    assert machine.available_bytes(meminfo) == 3072
    meminfo.write_text("MemTotal:       16 kB\n")
    with pytest.raises(OSError, match="no MemAvailable"):
        machine.available_bytes(meminfo)
