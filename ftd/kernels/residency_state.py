"""What ``residency_triton`` works on: the state of all experts, and what one access says and is told.

slot_of  [L*E] i32   owner_of [R] i32   last_use [R] i64   score [L*E] i64      as in ExpertCache
clock    [4]   i64   weight of a use now, accesses so far, age of the weight in steps, accesses before this
                     step
quota    [2, B, M] i32   how many of m misses to fill, and how many of the others to fill beside the step,
                         by the size of the step: row b is of up to 2^b tokens; more than M - 1 misses
                         count as M - 1
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ftd.kernels.expert_mailbox_triton import Mailbox
from ftd.kernels.expert_split import NUM_SIZES
from ftd.kernels.shapes import expect, expect_range

# Slots whose keys one program holds in registers while it looks for victims: 32 for each of 1024 threads.
MAX_SLOTS = 32768
# As in ExpertCache: what last_use is more than the access while only a copy beside the step filled the slot
BESIDE = 1 << 48
COUNTERS = ("uses", "hits", "fills", "transient_fills", "warm_fills", "on_cpu", "ahead_fills")
AHEAD = COUNTERS.index("ahead_fills")

Quota = Sequence[int] | Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True, eq=False)
class Residency:
    """The state of all experts of a model, on the device."""

    slot_of: torch.Tensor
    owner_of: torch.Tensor
    last_use: torch.Tensor
    score: torch.Tensor
    clock: torch.Tensor
    quota: torch.Tensor
    weights: torch.Tensor
    counters: torch.Tensor

    @classmethod
    def make(
        cls, num_experts: int, num_slots: int, quota: Quota, weights: Sequence[int], device: str
    ) -> "Residency":
        """Return empty slots; weights: of a use at each age within a half-life, as ``Clock`` has them.

        quota: of m misses, for every size of a step or for each; beside the step all others may be filled.
        """
        expect_range("slots", num_slots, num_slots, 0, MAX_SLOTS)

        def filled(count: int, value: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.full((count,), value, dtype=dtype, device=device)

        return cls(
            filled(num_experts, -1, torch.int32),
            filled(num_slots, -1, torch.int32),
            filled(num_slots, -1, torch.int64),
            filled(num_experts, 0, torch.int64),
            torch.tensor([weights[0], 0, 0, 0], dtype=torch.int64, device=device),
            quota_table(quota).to(device),
            torch.tensor(weights, dtype=torch.int64, device=device),
            filled(len(COUNTERS), 0, torch.int64),
        )

    def set_quota(self, quota: Quota, warm: Quota | None = None) -> None:
        """Say how many of m misses are filled, and how many others beside the step (None: all)."""
        table = quota_table(quota, warm)
        # From locked memory: nobody waits for the card while it serves
        self.quota.copy_(table.pin_memory() if self.quota.is_cuda else table, non_blocking=True)

    def saved(self) -> dict[str, torch.Tensor]:
        """Return a copy of all of it."""
        return {name: getattr(self, name).clone() for name in self.__slots__}

    def restore(self, saved: dict[str, torch.Tensor]) -> None:
        """Put back what ``saved`` returned."""
        for name, values in saved.items():
            getattr(self, name).copy_(values)

    @property
    def num_slots(self) -> int:
        """R, transient ones not counted."""
        return int(self.owner_of.shape[0])


def quota_table(quota: Quota, warm: Quota | None = None) -> torch.Tensor:
    """Return [2, B, M] i32 of what is said for each m, or for each size of a step and m."""
    fills = torch.tensor(quota, dtype=torch.int32).expand(NUM_SIZES, -1)
    beside = torch.full_like(fills, 1 << 20) if warm is None else torch.tensor(warm, dtype=torch.int32)
    return torch.stack([fills, beside.expand_as(fills)])


def size_of(tokens: int) -> int:
    """Return which row of the quota a step of ``tokens`` takes."""
    return (tokens - 1).bit_length()


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """Where the pairs of one layer's step run: the layer's experts, -1 where elsewhere.

    hits         [T, K] i32   experts that were in slots, which ``Residency.slot_of`` has
    fills        [T, K] i32   those that are being copied to the slots in ``slot_of`` [E] i32
    on_cpu       [T, K] i32   those that the CPU runs
    fetch, warm  [T*K, 2] i32 flat id and slot of what is fetched: waited for, and off the critical path
    counts       [3] i32      rows of fetch, rows of warm, experts on the CPU
    seen         [E] i32      one of the pairs of each expert
    """

    hits: torch.Tensor
    fills: torch.Tensor
    slot_of: torch.Tensor
    on_cpu: torch.Tensor
    fetch: torch.Tensor
    warm: torch.Tensor
    counts: torch.Tensor
    seen: torch.Tensor

    @classmethod
    def make(cls, tokens: int, chosen: int, num_experts: int, device: str) -> "Placement":
        """Allocate for steps of ``tokens`` and E experts."""

        def room(*shape: int) -> torch.Tensor:
            return torch.full(shape, -1, dtype=torch.int32, device=device)

        pairs = tokens * chosen
        return cls(
            room(tokens, chosen),
            room(tokens, chosen),
            room(num_experts),
            room(tokens, chosen),
            room(pairs, 2),
            room(pairs, 2),
            torch.zeros(3, dtype=torch.int32, device=device),
            room(num_experts),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """What the CPU needs of a layer's step: x [T, D] of the mailbox's dtype, weights [T, K] f32, its row."""

    mailbox: Mailbox
    x: torch.Tensor
    weights: torch.Tensor
    row: int

    def expect(self, tokens: int, chosen: int) -> None:
        """Raise ValueError unless it is of so many tokens and choices and fits the mailbox."""
        box = self.mailbox
        expect("x", self.x, str(box.x.dtype).removeprefix("torch."), (tokens, box.x.shape[1]))
        expect("weights", self.weights, "float32", (tokens, box.on_cpu.shape[1]))
        expect("weights", self.weights, "float32", (tokens, chosen))
        expect_range("tokens", tokens, tokens, 1, box.x.shape[0])
