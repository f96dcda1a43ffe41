"""Locks of host memory against a system that counts them, and one that refuses."""

from types import SimpleNamespace

import pytest
import torch

from ftd.kernels.host_lock import HostLocks


class System:
    """What CUDA does: memory is locked once, by address; ``status`` is what it answers."""

    def __init__(self) -> None:
        self.locked: dict[int, int] = {}
        self.asked: list[tuple[int, int]] = []
        self.status = 0

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        self.asked.append((address, size))
        assert flags == 0
        if self.status == 0:
            assert address not in self.locked, "CUDA refuses to lock memory twice"
            self.locked[address] = size
        return self.status

    def cudaHostUnregister(self, address: int) -> int:
        del self.locked[address]
        return 0


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> System:
    system = System()
    monkeypatch.setattr(torch, "cuda", SimpleNamespace(cudart=lambda: system))
    return system


def test_memory_is_locked_once_until_it_is_closed(system: System) -> None:
    locks, memory, other = HostLocks(), torch.zeros(100), torch.zeros(7, dtype=torch.uint8)
    assert locks.add(memory) and locks.add(memory) and locks.add(memory[:50]) and locks.add(other)
    assert system.asked == [(memory.data_ptr(), 400), (other.data_ptr(), 7)]
    assert locks.refusal is None
    locks.close()
    assert system.locked == {}
    locks.close()
    assert locks.add(memory), "it may be locked again"


def test_a_refusal_says_why_and_leaves_what_is_locked(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks, memory, more = HostLocks(), torch.zeros(4), torch.zeros(1 << 10)
    assert locks.add(memory)
    system.status = 2
    blamed: list[str] = []
    zeros = torch.zeros

    def launch(*shape: int, device: str = "cpu") -> torch.Tensor:
        blamed.append(device)
        if device == "cuda":
            raise RuntimeError("CUDA error: out of memory")  # of the refusal before
        return zeros(*shape)

    monkeypatch.setattr(torch, "zeros", launch)
    assert not locks.add(more)
    assert locks.refusal == "CUDA error 2 for 4096 bytes"
    assert blamed == ["cuda"], "the next launch would be blamed for it"
    assert locks.add(memory), "it still is locked"
    system.status = 0
    assert locks.add(more), "and later the system may have room"
    locks.close()
    assert system.locked == {}
