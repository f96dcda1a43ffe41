"""How much memory this process may still take: what the machine has free, capped by its control group."""

from pathlib import Path

from ftd import machine

_CGROUP = Path("/sys/fs/cgroup")


def free_bytes(cgroup: Path = _CGROUP) -> int:
    """Return the bytes that can be allocated without swapping or being killed."""
    free = machine.available_bytes()
    limit = _read(cgroup / "memory.max")
    used = _read(cgroup / "memory.current")
    if limit is not None and used is not None:
        free = min(free, max(0, limit - used + _reclaimable(cgroup / "memory.stat")))
    return free


def _read(path: Path) -> int | None:
    """Return the number in a control file; None if there is no such file or no limit in it."""
    try:
        text = path.read_text("ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _reclaimable(path: Path) -> int:
    """Return the bytes of clean page cache, which the system drops on demand."""
    try:
        lines = path.read_text("ascii").splitlines()
    except OSError:
        return 0
    values = dict(line.split(maxsplit=1) for line in lines if " " in line)
    return int(values.get("inactive_file", "0"))
