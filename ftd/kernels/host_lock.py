"""Page-locked host memory: a card reads it without the processor's help."""

import contextlib

import torch


def needs_locks(device: str) -> bool:
    """Return whether kernels there read host memory only if it is locked."""
    return device != "cpu"


class HostLocks:
    """Owns the locks of memory that others own; ``refusal`` says why the system refused the last one."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self.refusal: str | None = None

    def add(self, memory: torch.Tensor) -> bool:
        """Lock ``memory`` for the card; what is locked stays so. Return False if the system refuses."""
        address, size = memory.data_ptr(), memory.nbytes
        if self._sizes.get(address, 0) >= size:
            return True
        status = int(torch.cuda.cudart().cudaHostRegister(address, size, 0))
        if status == 0:
            self._sizes[address] = size
            return True
        self.refusal = f"CUDA error {status} for {size} bytes"
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device="cuda")  # the next launch is blamed for the error; let it be this one
        return False

    def close(self) -> None:
        """Unlock everything."""
        for address in self._sizes:
            torch.cuda.cudart().cudaHostUnregister(address)
        self._sizes.clear()
