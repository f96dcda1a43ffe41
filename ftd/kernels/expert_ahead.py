"""What decode copies a layer ahead of its use: the launches of ``look_ahead_triton``, and their memory."""

import torch

from ftd.kernels.expert_places import PoolConfig
from ftd.kernels.fill_triton import SHALLOW, fill
from ftd.kernels.look_ahead_triton import look_ahead
from ftd.kernels.residency_state import Placement, Residency
from ftd.kernels.side_stream import wait_for


class ExpertsAhead:
    """Copies an expert of the next layer. Each layer has a row of its own, which its copy reads.

    least [1] i32: misses of a layer that is long enough
    """

    def __init__(self, config: PoolConfig, device: str) -> None:
        self._config = config
        self._rows = torch.zeros((config.num_layers, 1, 2), dtype=torch.int32, device=device)
        self._counts = torch.zeros((config.num_layers, 1), dtype=torch.int32, device=device)
        self.least = torch.zeros(1, dtype=torch.int32, device=device)
        self._row: int | None = None
        self._chosen: torch.cuda.Event | None = None
        self._copied: torch.cuda.Event | None = None

    def expects(self, row: int) -> bool:
        """Return whether layer ``row`` was looked ahead to; the current stream waits for what was chosen."""
        if row != self._row:
            return False
        wait_for(self._chosen)
        return True

    @property
    def copied(self) -> torch.cuda.Event | None:
        """The end of the copy that was begun last."""
        return self._copied

    def choose(self, state: Residency, row: int, ids: torch.Tensor | None, before: Placement) -> None:
        """Choose what is copied for layer ``row``, which is expected to choose ``ids`` [T, K]; None: nothing.

        before: of the layer before.
        """
        self._row = None if ids is None else row
        if ids is None:
            return
        first = row * self._config.num_experts
        look_ahead(state, ids, first, before, self.least, self._rows[row], self._counts[row])
        self._chosen = torch.cuda.current_stream().record_event() if ids.is_cuda else None

    def copy(self, bases: torch.Tensor, slots: torch.Tensor) -> None:
        """Copy what was chosen last, if something was to be."""
        if self._row is None:
            return
        wait_for(self._chosen)
        its, config = (self._rows[self._row], self._counts[self._row]), self._config
        fill(*its, bases, slots, config.num_experts, config.record_bytes, SHALLOW)
        self._copied = torch.cuda.current_stream().record_event() if slots.is_cuda else None
