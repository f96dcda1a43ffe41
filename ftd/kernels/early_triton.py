"""Kernels of a step that start while the one before them ends (programmatic dependent launch).

A kernel with EARLY waits for its predecessor where it first touches what that wrote, and lets its successor
start only after its own wait: so what two kernels before wrote can be read without waiting, and a step's
arrays and weights always. In the other order products of 32 layers of q4_0 took 4,432 us, without early
starts 2,321 (H200).
"""

import functools

import torch


@functools.cache
def can_start_early() -> bool:
    """Return whether the card lets a kernel start before its predecessor ends."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)


def early(tensor: torch.Tensor) -> dict[str, bool]:
    """Return the launch options of a kernel on ``tensor`` that may start early."""
    if tensor.device.type != "cpu" and can_start_early():
        return {"EARLY": True, "launch_pdl": True}
    return {"EARLY": False}
