"""The layers of a prompt that are staged: the copy engine brings what is in no slot, two layers ahead.

A prefill of many tokens uses nearly all experts of a layer. What is resident is read in place; the others
go to one of the staged layers while the layer before computes from the other, or run on the processor where
it is quick with many rows (``expert_prompts``). What a prompt's last tokens use most then moves to the
coldest slots.
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch

from ftd.kernels import expert_seeds
from ftd.kernels.device_matrix import DeviceBank, DeviceMatrix
from ftd.kernels.expert_places import PoolConfig
from ftd.kernels.expert_prompts import PromptShare
from ftd.kernels.expert_seeds import Seeds
from ftd.kernels.fill_triton import fill
from ftd.kernels.residency_state import Placement, Residency
from ftd.kernels.side_stream import beside, wait_for


class StagedLayers:
    """The staged part of a pool's slots; nothing in it outlives a step.

    slots [R + 2E, S] u8; banks: of all layers, as they are added; placement: of so many tokens of a layer.
    """

    def __init__(
        self,
        config: PoolConfig,
        slots: torch.Tensor,
        state: Residency,
        banks: list[torch.Tensor],
        copies: torch.cuda.Stream | None,
        placement: Callable[[int, int], Placement],
    ) -> None:
        self._config, self._slots, self._state, self._banks = config, slots, state, banks
        self._copies, self._placement = copies, placement
        self.prompts: PromptShare | None = None
        self.num_staged = 0
        self._held = np.full(config.num_layers * config.num_experts, -1, np.int32)
        self._staged: dict[int, torch.cuda.Event | None] = {}
        self._seeds = Seeds(state, str(slots.device))
        places = torch.arange(config.num_places, dtype=torch.int32, device=slots.device)
        self._places = [
            places[self._first(half) :][: config.num_experts] for half in range(config.staged_layers)
        ]
        self._bases = [
            torch.tensor(
                [slots[self._first(half)].data_ptr()] * config.num_layers,
                dtype=torch.int64,
                device=slots.device,
            )
            for half in range(config.staged_layers)
        ]

    def begin(self, num_tokens: int) -> None:
        """Learn which experts are in slots and begin to stage the first layers. Waits for the device."""
        self._held = self._state.slot_of.cpu().numpy()
        if self.prompts is not None:
            self.prompts.choose(num_tokens, self._held, self._state.score.cpu().numpy())
        self.begin_first()

    def begin_first(self) -> None:
        """Begin to stage the first layers, of what ``begin`` learned."""
        self._staged.clear()
        for row in range(self._config.staged_layers):
            self._stage(row)

    def share(
        self, row: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, uses: torch.Tensor
    ) -> torch.Tensor:
        """Ask the processor for its part of a layer; return ``ids`` [T, K], -1 where it computes.

        uses [E + 1]: counts that part.
        """
        return ids if self.prompts is None else self.prompts.send(row, x, ids, weights, uses)

    def wait(self, row: int) -> None:
        """Let the current stream wait until the layer's experts are staged."""
        wait_for(self._staged.pop(row))

    def bank(self, row: int, layer: int, matrices: Mapping[str, DeviceMatrix]) -> DeviceBank:
        """Return the layer's bank, by expert: resident ones where they are, the others staged."""
        config = self._config
        resident = self._state.slot_of[row * config.num_experts :][: config.num_experts]
        staged = self._places[row % config.staged_layers]
        return DeviceBank(layer, matrices, torch.where(resident >= 0, resident, staged))

    def seed(self, row: int, ids: torch.Tensor) -> None:
        """Let experts of a layer that has been computed move to slots that are colder than they are.

        ids [T, K] of a prompt's tokens. Layers to come keep theirs: they are not staged.
        """
        config, first = self._config, row * self._config.num_experts
        if len(ids) < expert_seeds.STEPS * expert_seeds.TOKENS or config.num_slots == 0:
            return
        placement = self._placement(expert_seeds.TOKENS, row)
        self._seeds.choose(ids, range(first, first + config.num_experts), placement, config.policy)
        bases = self._bases[row % config.staged_layers]
        fill(placement.fetch, placement.counts, bases, self._slots, config.num_experts, config.record_bytes)

    def leave(self, row: int) -> None:
        """Begin to stage the next layer that lies where this one does, which has been launched."""
        self._stage(row + self._config.staged_layers)

    def collect_share(self, row: int, out: torch.Tensor, scale: float) -> None:
        """Add scale * what the processor computed of a layer to ``out``."""
        if self.prompts is not None:
            self.prompts.collect(row, out, scale)

    def _first(self, row: int) -> int:
        config = self._config
        return config.num_slots + row % config.staged_layers * config.num_experts

    def _stage(self, row: int) -> None:
        """Copy the experts of a layer that are in no slot, after what the current stream has launched."""
        config = self._config
        if row >= config.num_layers:
            return
        held = self._held[row * config.num_experts : (row + 1) * config.num_experts]
        if config.whole_layers:
            held = np.full_like(held, -1)
        first = self._first(row)
        missing = held < 0
        if self.prompts is not None:
            missing &= ~self.prompts.ours[row]
        edges = np.flatnonzero(np.diff(np.concatenate(([0], missing.view(np.int8), [0]))))
        with beside(self._copies):
            for begin, end in edges.reshape(-1, 2):
                target = self._slots[first + begin : first + end]
                target.copy_(self._banks[row][begin:end], non_blocking=True)
                self.num_staged += int(end - begin)
        self._staged[row] = None if self._copies is None else self._copies.record_event()
