"""Counts cores and names the instruction set: the only module of the kernels that asks what the machine is.

Cores come from the affinity mask, less hyper-threads of the same core, capped by the cgroup's CPU quota. The
instruction set comes from the kernel's flags (so the operating system saves its registers); the registers of
AMX must be asked for too. ``FTD_ISA`` caps the set: a switch for tests and bug reports, no setting, because
it must hold when a kernel is imported alone.

Results are the same bits with AVX2, AVX-512 and AMX, since vectors have 16 lanes everywhere; the scalar
version adds floats in another order, and AMX multiplies bfloat16 weights in its own (``matmul_ref``).
"""

import os
from pathlib import Path

from ftd import environment, machine
from ftd.choices import ISA_LEVELS
from ftd.errors import KernelUnavailable

try:
    from ftd.kernels._amx import permitted as _amx_permitted
except ImportError:  # nothing is compiled that could use its registers

    def _amx_permitted() -> bool:
        return False


_NEEDED_FLAGS: dict[str, frozenset[str]] = {
    "avx2": frozenset({"avx2", "fma", "f16c"}),
    "avx512": frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"}),
    "amx": frozenset({"amx_tile", "amx_int8", "amx_bf16"}),
}
_SYSTEM = Path("/sys/devices/system/cpu")


def _cpuinfo(key: str) -> str:
    """Return the first value of ``key`` in /proc/cpuinfo, or an empty string."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""


def detected_isa() -> str:
    """Return the best level of ``ISA_LEVELS`` that this process can run, whatever FTD_ISA says."""
    flags = frozenset(_cpuinfo("flags").split())
    best = "scalar"
    for level, needed in _NEEDED_FLAGS.items():
        if not needed <= flags or (level == "amx" and not _amx_permitted()):
            break
        best = level
    return best


def isa() -> str:
    """Return the level in force: the detected one, or the lower one that FTD_ISA names.

    Raises KernelUnavailable if FTD_ISA is no level or is above what the machine has.
    """
    detected = detected_isa()
    wanted = environment.isa() or detected
    if wanted not in ISA_LEVELS:
        raise KernelUnavailable(f"FTD_ISA is unknown: {wanted}", f"use one of {' '.join(ISA_LEVELS)}")
    if ISA_LEVELS.index(wanted) > ISA_LEVELS.index(detected):
        raise KernelUnavailable(f"FTD_ISA asks for {wanted}, this machine has {detected}", "unset FTD_ISA")
    return wanted


def _siblings(core: int) -> str:
    """Return what names the physical core under a logical one: itself where the system does not say."""
    try:
        return (_SYSTEM / f"cpu{core}/topology/thread_siblings_list").read_text(encoding="ascii").strip()
    except OSError:
        return str(core)


def quota_cores(root: Path = machine.GROUPS, membership: Path = machine.MEMBERSHIP) -> float:
    """Return how many cores' time the cgroup (v1 or v2, any ancestor) allows, infinity without a quota."""
    return min(map(_folder_quota, machine.control_groups("cpu", root, membership)), default=float("inf"))


def _folder_quota(folder: Path) -> float:
    """Return the quota that one cgroup folder itself sets, in cores."""
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()[:2]
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text(encoding="ascii").strip()
            period = (folder / "cpu.cfs_period_us").read_text(encoding="ascii").strip()
        if quota in ("max", "-1"):
            return float("inf")
        return int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return float("inf")


def usable_cores() -> list[int]:
    """Return the logical cores to run one thread each on: allowed, one a physical core, within quota."""
    allowed = sorted(os.sched_getaffinity(0))
    first_of: dict[str, int] = {}
    for core in allowed:
        first_of.setdefault(_siblings(core), core)
    cores = sorted(first_of.values())
    quota = quota_cores()
    if quota < len(cores):
        cores = cores[: max(1, int(quota))]
    return cores


def most_threads() -> int:
    """Return how many threads can run at once: as many as logical cores are allowed, within quota."""
    return max(1, int(min(len(os.sched_getaffinity(0)), quota_cores())))


def describe() -> str:
    """Return one line for the start-up log: processor, cores, level."""
    name = _cpuinfo("model name") or "unknown processor"
    return f"{name}, {len(usable_cores())} cores, {isa()}"
