"""Page-locked host memory: the card reads it without the processor's help."""

import contextlib

import torch


def lock(address: int, num_bytes: int) -> str | None:
    """Lock memory for the card; return why the system refuses, None if it is locked."""
    status = int(torch.cuda.cudart().cudaHostRegister(address, num_bytes, 0))  # type: ignore[no-untyped-call]
    if status == 0:
        return None
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device="cuda")  # the next launch is blamed for the error; let it be this one
    return f"CUDA error {status} for {num_bytes} bytes"


def unlock(address: int) -> None:
    """Unlock what ``lock`` has locked."""
    torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]
