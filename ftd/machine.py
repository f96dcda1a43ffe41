"""What the machine has free, asked of the system itself: importing psutil takes longer than many a load."""

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")


def available_bytes(meminfo: Path = _MEMINFO) -> int:
    """Return the bytes of memory that processes can take without swapping."""
    for line in meminfo.read_text("ascii").splitlines():
        name, _, amount = line.partition(":")
        if name == "MemAvailable":
            return int(amount.split()[0]) << 10
    raise OSError(f"no MemAvailable in {meminfo}")
