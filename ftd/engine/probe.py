"""What this machine computes with, as one JSON object: ``python -m ftd.engine.probe``, for ``ftd doctor``.

A process of its own, so that a kernel which this processor cannot run ends the probe and not the doctor.
"""

import json
import os
import sys
import warnings

from ftd.engine import devices
from ftd.errors import FtdError
from ftd.kernels import cpu, dispatch


def probe() -> dict[str, object]:
    """Return processor, instruction sets, cores and what runs each op. Raises KernelUnavailable."""
    quota = cpu.quota_cores()
    with warnings.catch_warnings():
        # a slow implementation is the doctor's to report
        warnings.simplefilter("ignore", RuntimeWarning)
        kernels = dispatch.describe()
    return {
        "processor": cpu.describe(),
        "isa": cpu.isa(),
        "detected_isa": cpu.detected_isa(),
        "usable_cores": len(cpu.usable_cores()),
        "logical_cores": os.cpu_count() or 1,
        "allowed_cores": len(os.sched_getaffinity(0)),
        "quota_cores": None if quota == float("inf") else quota,
        "kernels": kernels,
        **_device(),
    }


def _device() -> dict[str, object]:
    """Return the card's name and free bytes, or why none is used and what to do."""
    missing = devices.missing_for_cuda()
    if missing is not None:
        return {"device": "cpu", "device_reason": missing[0], "device_hint": missing[1]}
    card = devices.cuda()
    return {"device": card.label, "device_free_bytes": card.free_bytes()}


def main() -> int:
    """Print the probe, or the error as ``{"error": …, "hint": …}`` with exit code 1."""
    try:
        print(json.dumps(probe()))
    except FtdError as exc:
        print(json.dumps({"error": exc.message, "hint": exc.hint}))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
