"""Free memory against control files written by hand."""

from pathlib import Path

import pytest

from ftd import machine
from ftd.engine import memory


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 1000 bytes free."""
    monkeypatch.setattr(machine, "available_bytes", lambda: 1000)


def test_without_a_control_group_the_machine_counts(tmp_path: Path) -> None:
    assert memory.free_bytes(tmp_path) == 1000


@pytest.mark.parametrize(
    ("limit", "used", "stat", "free"),
    [
        ("max", "900", "", 1000),
        ("1000", "900", "anon 800\ninactive_file 50\n", 150),
        ("1000", "1200", "", 0),
        ("5000", "10", "", 1000),
    ],
)
def test_a_control_group_caps_it(tmp_path: Path, limit: str, used: str, stat: str, free: int) -> None:
    (tmp_path / "memory.max").write_text(limit + "\n")
    (tmp_path / "memory.current").write_text(used + "\n")
    (tmp_path / "memory.stat").write_text(stat)
    assert memory.free_bytes(tmp_path) == free
