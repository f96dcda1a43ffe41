"""How fast a card copies its own memory, and page-locked host memory to it by its copy engine."""

from statistics import median

import torch

DEVICE_BYTES = 4 << 30
HOST_BYTES = 1 << 30
REPEATS = 7


def device_rate(num_bytes: int = DEVICE_BYTES) -> float:
    """Return bytes a second, read and written, of a copy on the card."""
    source = torch.empty(num_bytes, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * num_bytes / _seconds(target, source)


def host_rate(num_bytes: int = HOST_BYTES) -> float:
    """Return bytes a second from page-locked host memory to the card."""
    source = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
    return num_bytes / _seconds(torch.empty(num_bytes, dtype=torch.uint8, device="cuda"), source)


def _seconds(target: torch.Tensor, source: torch.Tensor) -> float:
    times = []
    for _ in range(REPEATS + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        target.copy_(source, non_blocking=True)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return float(median(times[2:]))
