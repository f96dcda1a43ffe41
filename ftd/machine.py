"""What the machine has free, asked of the system itself: importing psutil takes longer than many a load.

A control group (a container's, or that of a service with ``MemoryMax``) may allow less than the machine has:
the tightest of the process's own and those above it counts. So does the limit of addresses (``ulimit -v``).
"""

import resource
from collections.abc import Iterator
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_MAPPED = Path("/proc/self/statm")
# Addresses that threads to come reserve for their allocations, 64 MiB each, most of them never touched
_OF_THREADS_BYTES = 10 << 26
GROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
# limit, use, and which row of memory.stat is clean page cache, which the system drops on demand
_VERSIONS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def available_bytes(meminfo: Path = _MEMINFO, groups: Path = GROUPS, membership: Path = MEMBERSHIP) -> int:
    """Return the bytes of memory that this process can take without swapping or being killed."""
    for line in meminfo.read_text("ascii").splitlines():
        name, _, amount = line.partition(":")
        if name == "MemAvailable":
            free = int(amount.split()[0]) << 10
            groups_left = map(_left, control_groups("memory", groups, membership))
            return int(min([free, _addresses_left(), *groups_left]))
    raise OSError(f"no MemAvailable in {meminfo}")


def control_groups(controller: str, groups: Path = GROUPS, membership: Path = MEMBERSHIP) -> Iterator[Path]:
    """Iterate over the folders of the groups that bind this process, its own first (versions 1 and 2)."""
    try:
        lines = membership.read_text("utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = groups / controller if controllers else groups
        folder = base / path.lstrip("/")
        yield from (place for place in (folder, *folder.parents) if place.is_relative_to(base))


def _left(group: Path) -> float:
    """Return the bytes that one group still allows, infinity without a limit."""
    for limit_name, used_name, cache in _VERSIONS:
        limit, used = _number(group / limit_name), _number(group / used_name)
        if limit is not None and used is not None:
            return max(0, limit - used + _row(group / "memory.stat", cache))
    return float("inf")


def _addresses_left() -> float:
    """Return the bytes that this process may still map, infinity without a limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return float("inf")
    num_pages = int(_MAPPED.read_text("ascii").split()[0])
    return max(0, limit - num_pages * resource.getpagesize() - _OF_THREADS_BYTES)


def _number(path: Path) -> int | None:
    """Return the number in a control file; None if there is no such file or no limit in it."""
    try:
        text = path.read_text("ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _row(path: Path, name: str) -> int:
    try:
        lines = path.read_text("ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0)
