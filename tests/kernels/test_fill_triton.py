"""fill against copying records with torch; the memory is pinned, but for the interpreter."""

import numpy as np
import pytest
import torch

from ftd.kernels.fill_triton import fill

S, E = 4096 * 5, 6


def banks_of(rng: np.random.Generator, device: str) -> list[torch.Tensor]:
    """Return the records of three layers."""
    banks = [torch.from_numpy(rng.integers(0, 256, (E, S), np.uint8)) for _ in range(3)]
    return [bank.pin_memory() if device == "cuda" else bank for bank in banks]


@pytest.mark.parametrize("count", [0, 1, 4])
def test_copies_the_counted_records_and_nothing_else(
    device: str, rng: np.random.Generator, count: int
) -> None:
    banks = banks_of(rng, device)
    bases = torch.tensor([bank.data_ptr() for bank in banks], dtype=torch.int64, device=device)
    slots = torch.zeros((9, S + 4096), dtype=torch.uint8, device=device)
    rows = [(13, 2), (0, 8), (5, 0), (17, 5), (1, 1)]
    wanted = slots.cpu().clone()
    for flat, slot in rows[:count]:
        wanted[slot, :S] = banks[flat // E][flat % E]
    table = torch.tensor(rows, dtype=torch.int32, device=device)
    counts = torch.tensor([count, 3], dtype=torch.int32, device=device)
    fill(table, counts, bases, slots, E, S, depth=(3, 1024))
    assert torch.equal(slots.cpu(), wanted)


def test_refuses_records_that_do_not_fit(device: str) -> None:
    rows = torch.zeros((1, 2), dtype=torch.int32, device=device)
    bases = torch.zeros(1, dtype=torch.int64, device=device)
    slots = torch.zeros((1, 4096), dtype=torch.uint8, device=device)
    with pytest.raises(ValueError, match="records of 8192 bytes do not fit slots of 4096"):
        fill(rows, rows[0], bases, slots, 1, 8192)
    with pytest.raises(ValueError, match="records of 24 bytes"):
        fill(rows, rows[0], bases, slots, 1, 24)
