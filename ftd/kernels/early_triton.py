"""Kernels of a step that start while the one before them ends (programmatic dependent launch).

A kernel with EARLY waits for its predecessor where it first touches what that wrote, and lets its successor
start only after its own wait: so what two kernels before wrote can be read without waiting, and a step's
arrays and weights always. In the other order products of 32 layers of q4_0 took 4,432 us, without early
starts 2,321 (H200).

Dense products let their successor start and do not start early themselves: a step of 8 layers of 8b q4_0
takes 603 us so, 679 where they do, 731 where they fetch weights into the L2 before the wait; their
programs fill a card unevenly that still holds parts of the kernel before. Where only o, q/k/v and gate/up
start early it is 593. Their first weights brought before the wait, in persistent programs or in small
ones, took 599 to 650 us (30b-a3b q4_0 485 to 459, bf16 614 to 601; 8b bf16 1,282 to 1,291 and more).
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
