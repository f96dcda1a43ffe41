"""Counting cores and naming the instruction set, against made-up machines in a folder."""

import os
from pathlib import Path

import pytest

from ftd.errors import KernelUnavailable
from ftd.kernels import _amx, cpu
from tests.kernels.conftest import LEVELS


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="ascii")


def fake_flags(monkeypatch: pytest.MonkeyPatch, flags: str) -> None:
    monkeypatch.setattr(cpu, "_cpuinfo", lambda key: flags if key == "flags" else "A Processor")
    monkeypatch.setattr(cpu, "_amx_permitted", lambda: True)
    monkeypatch.delenv("FTD_ISA", raising=False)


AVX2 = "sse2 avx2 fma f16c"
AVX512 = f"{AVX2} avx512f avx512bw avx512dq avx512vl avx512_vnni"


@pytest.mark.parametrize(
    ("flags", "level"),
    [
        ("", "scalar"),
        ("sse2 avx2", "scalar"),
        (AVX2, "avx2"),
        (f"{AVX2} avx512f avx512bw", "avx2"),
        (AVX512, "avx512"),
        (f"{AVX512} amx_tile amx_int8 amx_bf16", "amx"),
        (f"{AVX2} amx_tile amx_int8 amx_bf16", "avx2"),
    ],
)
def test_flags_give_the_level(flags: str, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_flags(monkeypatch, flags)
    assert cpu.isa() == level


def test_without_the_systems_permission_amx_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_flags(monkeypatch, f"{AVX512} amx_tile amx_int8 amx_bf16")
    monkeypatch.setattr(cpu, "_amx_permitted", lambda: False)
    assert cpu.isa() == "avx512"
    monkeypatch.setenv("FTD_ISA", "amx")
    with pytest.raises(KernelUnavailable, match="this machine has avx512"):
        cpu.isa()


def test_permission_stays_when_asked_for_twice() -> None:
    assert _amx.permitted() == _amx.permitted()


def test_ftd_isa_lowers_the_level(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_flags(monkeypatch, AVX512)
    monkeypatch.setenv("FTD_ISA", "avx2")
    assert cpu.isa() == "avx2"
    assert cpu.detected_isa() == "avx512"


@pytest.mark.parametrize("wanted", ["avx512", "sse9"])
def test_ftd_isa_cannot_ask_for_what_is_not_there(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_flags(monkeypatch, AVX2)
    monkeypatch.setenv("FTD_ISA", wanted)
    with pytest.raises(KernelUnavailable, match=wanted):
        cpu.isa()


def test_one_hyper_thread_of_each_core_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for core, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        write(tmp_path / f"cpu{core}/topology/thread_siblings_list", siblings)
    monkeypatch.setattr(cpu, "_SYSTEM", tmp_path)
    monkeypatch.setattr(cpu, "quota_cores", lambda: float("inf"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3})
    assert cpu.usable_cores() == [0, 1]
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {2, 3})
    assert cpu.usable_cores() == [2, 3]


def test_a_quota_takes_cores_away_but_never_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3})
    monkeypatch.setattr(cpu, "_siblings", str)
    monkeypatch.setattr(cpu, "quota_cores", lambda: 2.5)
    assert cpu.usable_cores() == [0, 1]
    monkeypatch.setattr(cpu, "quota_cores", lambda: 0.3)
    assert cpu.usable_cores() == [0]


def test_the_tightest_ancestor_of_a_unified_cgroup_counts(tmp_path: Path) -> None:
    write(tmp_path / "membership", "0::/a/b\n")
    write(tmp_path / "fs/a/cpu.max", "150000 100000\n")
    write(tmp_path / "fs/a/b/cpu.max", "max 100000\n")
    assert cpu.quota_cores(tmp_path / "fs", tmp_path / "membership") == 1.5


def test_a_version_one_cgroup_is_read(tmp_path: Path) -> None:
    write(tmp_path / "membership", "3:memory:/m\n2:cpu,cpuacct:/a\n")
    write(tmp_path / "fs/cpu/a/cpu.cfs_quota_us", "300000\n")
    write(tmp_path / "fs/cpu/a/cpu.cfs_period_us", "100000\n")
    assert cpu.quota_cores(tmp_path / "fs", tmp_path / "membership") == 3.0


@pytest.mark.parametrize("text", ["max 100000\n", "nonsense\n", "100000 0\n", ""])
def test_no_readable_quota_is_no_quota(text: str, tmp_path: Path) -> None:
    write(tmp_path / "membership", "0::/a\n")
    write(tmp_path / "fs/a/cpu.max", text)
    assert cpu.quota_cores(tmp_path / "fs", tmp_path / "membership") == float("inf")


def test_a_system_without_cgroups_has_no_quota(tmp_path: Path) -> None:
    assert cpu.quota_cores(tmp_path, tmp_path / "absent") == float("inf")


def test_this_machine_describes_itself() -> None:
    assert f"{len(cpu.usable_cores())} cores, {cpu.isa()}" in cpu.describe()


@pytest.mark.parametrize(
    ("allowed", "quota", "most"), [(4, float("inf"), 4), (4, 2.5, 2), (4, 0.5, 1), (1, 8.0, 1)]
)
def test_no_more_threads_run_at_once_than_cores_and_quota_allow(
    allowed: int, quota: float, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu.os, "sched_getaffinity", lambda _: set(range(allowed)))
    monkeypatch.setattr(cpu, "quota_cores", lambda: quota)
    assert cpu.most_threads() == most


def test_every_instruction_set_is_tested_here() -> None:
    """Fixtures of the kernel tests leave out what the machine has not; this is where they say so."""
    assert LEVELS[-1] == cpu.detected_isa()
    if missing := cpu.ISA_LEVELS[len(LEVELS) :]:
        pytest.skip(f"kernels run without {', '.join(missing)}: this machine has {LEVELS[-1]}")
