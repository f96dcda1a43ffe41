"""What a prompt leaves in slots: its last tokens count as a few steps, and a layer gets a few experts."""

from dataclasses import replace

import torch

from ftd.kernels.residency_state import Placement, Residency, quota_table
from ftd.kernels.residency_triton import access

# Tokens of a step, steps, and the experts that a layer gets in the last one
TOKENS, STEPS, EXPERTS = 16, 4, 16


class Seeds:
    """Chooses which of a layer's experts move to slots, which nobody counts as misses."""

    def __init__(self, state: Residency, device: str) -> None:
        uncounted = replace(state, counters=torch.zeros_like(state.counters))
        self._states = [
            replace(uncounted, quota=quota_table([limit, limit], [0, 0]).to(device))
            for limit in [0] * (STEPS - 1) + [EXPERTS]
        ]

    def choose(self, ids: torch.Tensor, flat: range, placement: Placement, policy: str) -> None:
        """Let ``placement`` say which experts ``flat`` of a layer move; ids [T, K], T >= STEPS * TOKENS."""
        for state, rows in zip(self._states, torch.split(ids[-STEPS * TOKENS :], TOKENS), strict=True):
            access(state, rows, flat.start, placement, policy, 0, flat.stop)
