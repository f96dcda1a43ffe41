"""Chooses where a model computes: the processor, or a CUDA card.

torch is imported only when a card may be used: by ``cuda_device``, which is all that needs one.
"""

import glob
import importlib.util
import logging

import numpy as np
from msgspec.structs import replace

from ftd import log, machine
from ftd.engine.device import Device
from ftd.errors import KernelUnavailable
from ftd.kernels import dispatch

logger = logging.getLogger(__name__)


def cpu(reason: str = "") -> Device:
    """Return the processor. reason: why it is no card."""
    return Device(
        name="cpu",
        label="cpu",
        make_graph=dispatch.get("graph"),
        make_pages=np.zeros,
        free_bytes=machine.available_bytes,
        reason=reason,
    )


def interpreter() -> Device:
    """Return Triton's interpreter: the kernels of a card, run slowly on the processor, for tests."""
    return _by_kernels_of_cards("interpreter")


def cuda() -> Device:
    """Return the first CUDA card. Raises KernelUnavailable, with what is missing, if there is none."""
    reason = missing_for_cuda()
    if reason is not None:
        raise KernelUnavailable(f"no CUDA device can be used: {reason[0]}", reason[1])
    return _by_kernels_of_cards("cuda")


def _by_kernels_of_cards(name: str) -> Device:
    from ftd.engine import cuda_device  # imports torch

    return {"interpreter": cuda_device.interpreter, "cuda": cuda_device.first}[name]()


def missing_for_cuda() -> tuple[str, str] | None:
    """Return why no card can be used and what to do, None if one can."""
    if not glob.glob("/dev/nvidia[0-9]*") and not glob.glob("/dev/dxg"):
        return (
            "this machine has no NVIDIA card, or its driver is not loaded",
            "install the driver, or use cpu",
        )
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("triton") is None:
        return "torch or triton is not installed", "pip install 'ftd[gpu]'"
    import torch  # takes seconds

    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no card", "install a CUDA build of torch that fits the driver"
    return None


def choose(wanted: str) -> Device:
    """Return the device named ``wanted``.

    "auto" takes a card where one can be used and says why not. Raises KernelUnavailable if "cuda" cannot be.
    """
    if wanted == "auto":
        return _chosen(_automatic())
    return {"cpu": cpu, "interpreter": interpreter, "cuda": cuda}[wanted]()


def _automatic() -> Device:
    """Return a card where one can be used, else the processor, and why."""
    missing = missing_for_cuda()
    if missing is not None:
        return cpu(missing[0])
    card = cuda()
    return replace(card, reason="it can be used")


def _chosen(device: Device) -> Device:
    """Say in the log what was chosen and why."""
    logger.info(log.fields("device chosen", device=device.label, reason=device.reason))
    return device
