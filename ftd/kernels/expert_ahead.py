"""What decode copies a layer ahead of its use: the launches of ``look_ahead_triton``, and their memory."""

import torch

from ftd.kernels.expert_places import PoolConfig
from ftd.kernels.fill_triton import SHALLOW, fill
from ftd.kernels.look_ahead_triton import await_copies, look_ahead
from ftd.kernels.residency_state import Placement, Residency


class ExpertsAhead:
    """Copies one expert of the next layer at a time; each layer has a row of its own, which the copy reads.

    flights [3] i32, as ``look_ahead_triton`` has them
    """

    def __init__(self, config: PoolConfig, device: str) -> None:
        self._config = config
        self._rows = torch.zeros((config.num_layers, 1, 2), dtype=torch.int32, device=device)
        self._counts = torch.zeros((config.num_layers, 1), dtype=torch.int32, device=device)
        self.flights = torch.zeros(3, dtype=torch.int32, device=device)
        self._programs, _ = SHALLOW
        self._row: int | None = None
        self._chosen: torch.cuda.Event | None = None

    def expects(self, row: int) -> bool:
        """Return whether layer ``row`` was looked ahead to; the current stream waits for what was chosen."""
        if row != self._row:
            return False
        self.await_choice()
        return True

    def choose(self, state: Residency, row: int, ids: torch.Tensor | None, before: Placement) -> None:
        """Choose what is copied for layer ``row``, which is expected to choose ``ids`` [T, K]; None: nothing.

        before: of the layer before.
        """
        self._row = None if ids is None else row
        if ids is None:
            return
        first = row * self._config.num_experts
        its = self._rows[row], self._counts[row]
        look_ahead(state, ids, first, before, self.flights, self._programs, *its)
        if ids.is_cuda:
            self._chosen = torch.cuda.current_stream().record_event()

    def await_choice(self) -> None:
        """Let the current stream wait for what was chosen last."""
        if self._chosen is not None:
            torch.cuda.current_stream().wait_event(self._chosen)

    def copy(self, bases: torch.Tensor, slots: torch.Tensor) -> None:
        """Copy what was chosen last, if something was to be."""
        if self._row is None:
            return
        self.await_choice()
        its, config = (self._rows[self._row], self._counts[self._row]), self._config
        fill(*its, bases, slots, config.num_experts, config.record_bytes, SHALLOW, self.flights)

    def wait(self, placement: Placement) -> None:
        """Let the current stream wait for those of a layer's hits that are still under way."""
        await_copies(placement.counts, self.flights, self._programs)
