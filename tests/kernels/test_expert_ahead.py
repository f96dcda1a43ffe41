"""What is copied a layer ahead: which layer it is for, and that the record is there."""

import numpy as np
import torch

from ftd.kernels.expert_ahead import ExpertsAhead
from ftd.kernels.residency_state import Placement, Residency
from ftd.kernels.residency_triton import access, advance
from tests.kernels.test_expert_places import config

LAYERS, E, R = 2, 4, 3
CONFIG = config(LAYERS, E, R)
S, QUOTA = CONFIG.record_bytes, tuple(range(E + 1))


def test_the_likeliest_miss_of_the_next_layer_is_copied(device: str, rng: np.random.Generator) -> None:
    banks = [torch.from_numpy(rng.integers(0, 256, (E, S), np.uint8)) for _ in range(LAYERS)]
    if device == "cuda":
        banks = [bank.pin_memory() for bank in banks]
    bases = torch.tensor([bank.data_ptr() for bank in banks], dtype=torch.int64, device=device)
    slots = torch.zeros((R, S), dtype=torch.uint8, device=device)
    state = Residency.make(LAYERS * E, R, QUOTA, CONFIG.weights, device)
    placement = Placement.make(1, 2, E, device)
    ahead = ExpertsAhead(CONFIG, device)

    def step(least: int) -> None:
        advance(state, CONFIG.epoch_half_lives)
        ahead.least.fill_(least)
        ids = torch.tensor([[0, 1]], dtype=torch.int32, device=device)
        access(state, ids, 0, placement)
        ahead.choose(state, 1, torch.tensor([[-1, 2]], dtype=torch.int32, device=device), placement)
        ahead.copy(bases, slots)

    step(least=3)  # the layer misses two
    assert int(state.slot_of[E + 2]) == -1 and not slots.any()
    assert ahead.expects(1) and not ahead.expects(0)
    step(least=0)
    assert state.slot_of[E + 2] == 2
    assert slots[2].tolist() == banks[1][2].tolist() and not slots[:2].any()
    ahead.choose(state, 2, None, placement)
    ahead.copy(bases, slots)
    assert not ahead.expects(2)
