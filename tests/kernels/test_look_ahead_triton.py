"""Looking ahead against ``ExpertCache``: every integer of state, placement and counters."""

import numpy as np
import pytest
import torch

from ftd.engine.expert_cache import EPOCH_HALF_LIVES, NOWHERE, ExpertCache
from ftd.kernels.look_ahead_triton import MAX_PAIRS, look_ahead
from ftd.kernels.residency_state import Placement, Residency
from ftd.kernels.residency_triton import access, advance
from tests.kernels.test_residency_triton import LAYERS, E, check_placement, check_state, weights_of


@pytest.mark.parametrize(("tokens", "slots"), [(1, 16), (4, 20), (2, 3), (1, 0)])
def test_looks_ahead_as_the_cache_does(
    device: str, rng: np.random.Generator, tokens: int, slots: int
) -> None:
    chosen, quota = 3, (0, 0, 1, 2)
    cache = ExpertCache(LAYERS * E, slots, "decayed", E, 8)
    state = Residency.make(LAYERS * E, slots, quota, weights_of(8), device)
    state.set_quota(quota, [1] * len(quota))
    least, row, count = (
        torch.zeros(shape, dtype=torch.int32, device=device) for shape in ((1,), (1, 2), (1,))
    )
    popularity = rng.random((LAYERS, E)) ** 3
    placement = Placement.make(tokens, chosen, E, device)
    for step in range(6):
        cache.advance()
        advance(state, EPOCH_HALF_LIVES)
        routes = np.argsort(-rng.random((LAYERS, tokens, E)) * popularity[:, None], axis=2)[..., :chosen]
        routes = routes.astype(np.int32)
        for layer in range(LAYERS):
            placed = torch.from_numpy(routes[layer]).to(device)
            access(state, placed, layer * E, placement, "decayed", E)
            flat = np.unique(routes[layer]) + layer * E
            num_misses = int(np.count_nonzero(cache.slot_of[flat] == NOWHERE))
            wanted = cache.access(flat, quota[min(num_misses, len(quota) - 1)], 1)
            check_placement(routes[layer], layer * E, placement, wanted, cache.slot_of)
            if layer + 1 == LAYERS:
                continue
            expected = routes[layer + 1].copy()
            expected[rng.random(expected.shape) < 0.3] = -1
            least[0] = E if step == 3 else 0  # layers are too short
            its_ids = torch.from_numpy(expected).to(device)
            look_ahead(state, its_ids, (layer + 1) * E, placement, least, row, count)
            ahead = None
            if step != 3:
                order = expected.T.reshape(-1)
                ahead = cache.look_ahead(np.where(order < 0, -1, order + (layer + 1) * E))
            assert [tuple(each) for each in row[: count[0]].tolist()] == ([] if ahead is None else [ahead])
            check_state(state, cache)


def test_refuses_more_pairs_than_it_compares(device: str) -> None:
    state, placement = Residency.make(8, 2, (0, 1), [1], device), Placement.make(1, 2, 8, device)
    least, row, count = (
        torch.zeros(shape, dtype=torch.int32, device=device) for shape in ((1,), (1, 2), (1,))
    )
    ids = torch.zeros((1, MAX_PAIRS + 1), dtype=torch.int32, device=device)
    with pytest.raises(ValueError, match=f"pairs must lie in 1 to {MAX_PAIRS}"):
        look_ahead(state, ids, 0, placement, least, row, count)
