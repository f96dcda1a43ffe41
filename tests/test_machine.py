"""Free memory against psutil, and against files of the system written by hand."""

import resource
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from ftd import machine


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def meminfo(tmp_path: Path) -> Path:
    """A machine with 1024 bytes free."""
    path = tmp_path / "meminfo"
    path.write_text("MemTotal:       16 kB\nMemAvailable:   1 kB\n")
    return path


def test_it_is_what_psutil_says(tmp_path: Path) -> None:
    found = machine.available_bytes(groups=tmp_path)
    assert found == pytest.approx(psutil.virtual_memory().available, rel=0.2)


def test_kilobytes_become_bytes(meminfo: Path, tmp_path: Path) -> None:
    assert machine.available_bytes(meminfo, tmp_path, tmp_path / "absent") == 1024
    meminfo.write_text("MemTotal:       16 kB\n")
    with pytest.raises(OSError, match="no MemAvailable"):
        machine.available_bytes(meminfo)


@pytest.mark.parametrize(
    ("limit", "used", "stat", "free"),
    [
        ("max", "900", "", 1024),
        ("1000", "900", "anon 800\ninactive_file 50\n", 150),
        ("1000", "1200", "", 0),
        ("5000", "10", "", 1024),
        ("nonsense", "10", "", 1024),
    ],
)
@pytest.mark.parametrize("place", ["", "user.slice/ftd.service", "user.slice"])
def test_a_control_group_caps_it_and_so_does_one_above(
    place: str, limit: str, used: str, stat: str, free: int, meminfo: Path, tmp_path: Path
) -> None:
    write(tmp_path / "membership", "0::/user.slice/ftd.service\n")
    write(tmp_path / "fs/user.slice/ftd.service/memory.max", "max\n")
    write(tmp_path / "fs/user.slice/ftd.service/memory.current", "10\n")
    write(tmp_path / "fs" / place / "memory.max", f"{limit}\n")
    write(tmp_path / "fs" / place / "memory.current", f"{used}\n")
    write(tmp_path / "fs" / place / "memory.stat", stat)
    assert machine.available_bytes(meminfo, tmp_path / "fs", tmp_path / "membership") == free


def test_a_version_one_group_caps_it(meminfo: Path, tmp_path: Path) -> None:
    write(tmp_path / "membership", "4:cpu,memory:/a/b\n3:cpu:/c\n0::/\n")
    write(tmp_path / "fs/memory/a/memory.limit_in_bytes", "500\n")
    write(tmp_path / "fs/memory/a/memory.usage_in_bytes", "400\n")
    write(tmp_path / "fs/memory/a/memory.stat", "inactive_file 1\ntotal_inactive_file 30\n")
    write(tmp_path / "fs/memory/memory.limit_in_bytes", "9223372036854771712\n")
    write(tmp_path / "fs/memory/memory.usage_in_bytes", "10\n")
    assert machine.available_bytes(meminfo, tmp_path / "fs", tmp_path / "membership") == 130


def test_a_group_of_another_process_does_not(meminfo: Path, tmp_path: Path) -> None:
    write(tmp_path / "membership", "0::/mine\n")
    write(tmp_path / "fs/other/memory.max", "5\n")
    write(tmp_path / "fs/other/memory.current", "1\n")
    assert machine.available_bytes(meminfo, tmp_path / "fs", tmp_path / "membership") == 1024


def test_a_limit_of_addresses_caps_it() -> None:
    """What the process has mapped already does not count."""
    limit = 2 << 30

    def bounded() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    program = "from ftd import machine; print(machine.available_bytes(groups=machine.Path('/nowhere')))"
    result = subprocess.run(
        [sys.executable, "-c", program], preexec_fn=bounded, capture_output=True, text=True, check=True
    )
    assert 1 << 30 < int(result.stdout) < limit - (640 << 20)
