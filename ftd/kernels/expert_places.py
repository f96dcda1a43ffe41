"""How many slots a pool of experts has, and which experts are in them at first."""

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    """Sizes and policy of a pool.

    num_layers, num_experts: L layers with experts, E in each. record_bytes: S. num_slots: R. quota: how many
    of m misses are fetched, the others run on the processor. weights: what a use adds to a score at each age,
    epoch_half_lives: after how many half-lives scores are shifted, both as ``expert_cache.Clock`` has them.
    policy: lru or decayed. whole_layers: prompts copy all. overlaps: copies run beside what computes.
    staged_layers: 2, or 1 where the copy of a layer waits for the one before it. looks_ahead: decode copies
    an expert of the next layer beside a layer.
    """

    num_layers: int
    num_experts: int
    record_bytes: int
    num_slots: int
    quota: tuple[int, ...]
    weights: tuple[int, ...]
    epoch_half_lives: int
    policy: str = "decayed"
    whole_layers: bool = False
    overlaps: bool = True
    staged_layers: int = 2
    looks_ahead: bool = False

    @property
    def num_staged(self) -> int:
        """Slots for whole layers beside the R that keep experts."""
        return self.staged_layers * self.num_experts

    @property
    def num_places(self) -> int:
        """All slots."""
        return self.num_slots + self.num_staged


def first_owners(config: PoolConfig, score: NDArray[np.int64] | None) -> NDArray[np.int32]:
    """Return which experts are in slots at first, ascending: the hottest, or as many of each layer."""
    rows, experts, slots = config.num_layers, config.num_experts, config.num_slots
    slots = min(slots, rows * experts)
    if score is not None:
        flat = np.arange(len(score))
        return np.sort(np.lexsort((flat, -score))[:slots]).astype(np.int32)
    ends = [row * slots // rows for row in range(rows + 1)]
    parts = [
        np.arange(end - first, dtype=np.int32) + row * experts
        for row, (first, end) in enumerate(itertools.pairwise(ends))
    ]
    return np.concatenate(parts)


def runs(owners: NDArray[np.int32]) -> list[tuple[int, int]]:
    """Return where experts that follow each other begin and end among ascending ones."""
    edges = [0, *(np.flatnonzero(np.diff(owners) != 1) + 1).tolist(), len(owners)]
    return [(begin, end) for begin, end in itertools.pairwise(edges) if begin < end]
