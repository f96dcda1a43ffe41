"""Staged layers against copying by hand: what is in a slot stays there, all else lies in a stage."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from ftd.kernels import expert_seeds
from ftd.kernels.device_matrix import DeviceBank
from ftd.kernels.expert_mailbox_triton import Mailbox
from ftd.kernels.expert_places import PoolConfig
from ftd.kernels.expert_prompts import PromptShare
from ftd.kernels.expert_stages import StagedLayers
from ftd.kernels.residency_state import Placement, Residency
from tests.kernels.test_expert_places import config

LAYERS, E, R = 3, 4, 5
CONFIG = config(LAYERS, E, R)
S, QUOTA = CONFIG.record_bytes, tuple(range(E + 1))


class Pool:
    """The parts of a pool that stages work with: experts 1 and 2 of layer 0 and 3 of layer 2 are in slots."""

    def __init__(self, rng: np.random.Generator, device: str, made: PoolConfig = CONFIG) -> None:
        self.banks = [torch.from_numpy(rng.integers(0, 256, (E, S), np.uint8)) for _ in range(LAYERS)]
        if device == "cuda":
            self.banks = [bank.pin_memory() for bank in self.banks]
        self.slots = torch.zeros((made.num_places, S), dtype=torch.uint8, device=device)
        self.state = Residency.make(LAYERS * E, R, QUOTA, made.weights, device)
        for slot, flat in enumerate((1, 2, 2 * E + 3)):
            self.state.owner_of[slot], self.state.slot_of[flat] = flat, slot
            self.slots[slot] = self.banks[flat // E][flat % E].to(device)
        self.placements: dict[tuple[int, int], Placement] = {}
        stream = torch.cuda.Stream() if device == "cuda" else None
        self.stages = StagedLayers(made, self.slots, self.state, self.banks, stream, self.placement)
        self.device = device

    def placement(self, tokens: int, row: int) -> Placement:
        return self.placements.setdefault((tokens, row), Placement.make(tokens, 2, E, self.device))

    def found(self, bank: DeviceBank) -> list[list[int]]:
        """Return the records that a bank names, by expert."""
        return self.slots[bank.slot_of.long()].tolist()


@pytest.mark.parametrize(("staged_layers", "whole_layers"), [(2, False), (1, False), (2, True)])
def test_every_expert_of_a_layer_can_be_read(
    device: str, rng: np.random.Generator, staged_layers: int, whole_layers: bool
) -> None:
    pool = Pool(rng, device, replace(CONFIG, staged_layers=staged_layers, whole_layers=whole_layers))
    pool.stages.begin(100)
    for row in range(LAYERS):
        pool.stages.wait(row)
        assert pool.found(pool.stages.bank(row, row, {})) == pool.banks[row].tolist()
        pool.stages.leave(row)
    assert pool.stages.num_staged == LAYERS * E - (0 if whole_layers else 3)


def test_what_the_processor_runs_is_not_staged(device: str, rng: np.random.Generator) -> None:
    pool = Pool(rng, device)
    share = PromptShare(Mailbox.allocate(2, 2, 32, torch.float32, device, most=8), LAYERS, E, 1)
    share.share_of = lambda tokens, missing: 1
    pool.stages.prompts = share
    pool.stages.begin(8)
    for row in range(LAYERS):
        pool.stages.wait(row)
        pool.stages.leave(row)
    assert share.ours.sum(axis=1).tolist() == [1, 1, 1]
    assert pool.stages.num_staged == LAYERS * E - 3 - LAYERS


def test_what_a_prompt_used_most_at_its_end_moves_to_cold_slots(
    device: str, rng: np.random.Generator
) -> None:
    pool = Pool(rng, device)
    tokens = expert_seeds.STEPS * expert_seeds.TOKENS
    ids = torch.tensor([[0, 2]] * tokens, dtype=torch.int32, device=device)
    pool.stages.begin(tokens)
    pool.stages.wait(0)
    pool.stages.seed(0, ids[:-1])  # too few to say anything
    assert int(pool.state.slot_of[0]) == -1
    pool.stages.seed(0, ids)
    slot = int(pool.state.slot_of[0])
    assert slot in (3, 4), "an empty slot"
    assert pool.slots[slot].tolist() == pool.banks[0][0].tolist()
    assert pool.state.slot_of[2 * E + 3] == 2, "layers to come keep theirs"
