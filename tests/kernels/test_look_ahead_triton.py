"""Looking ahead against ``ExpertCache``: every integer of state, placement and counters."""

import numpy as np
import pytest
import torch

from ftd.engine.expert_cache import EPOCH_HALF_LIVES, NOWHERE, ExpertCache
from ftd.kernels.look_ahead_triton import MAX_PAIRS, await_copies, look_ahead
from ftd.kernels.residency_state import Placement, Residency
from ftd.kernels.residency_triton import access, advance
from tests.kernels.test_residency_triton import LAYERS, E, check_placement, check_state, weights_of


@pytest.mark.parametrize(("tokens", "slots"), [(1, 16), (4, 20), (2, 3), (1, 0)])
def test_looks_ahead_as_the_cache_does(
    device: str, rng: np.random.Generator, tokens: int, slots: int
) -> None:
    chosen, quota, programs = 3, (0, 0, 1, 2), 4
    cache = ExpertCache(LAYERS * E, slots, "decayed", E, 8)
    state = Residency.make(LAYERS * E, slots, quota, weights_of(8), device)
    state.set_quota(quota, [1] * len(quota))
    flights, row, count = (
        torch.zeros(shape, dtype=torch.int32, device=device) for shape in ((3,), (1, 2), (1,))
    )
    popularity = rng.random((LAYERS, E)) ** 3
    placement = Placement.make(tokens, chosen, E, device)
    begun = 0
    for step in range(6):
        cache.advance()
        advance(state, EPOCH_HALF_LIVES)
        routes = np.argsort(-rng.random((LAYERS, tokens, E)) * popularity[:, None], axis=2)[..., :chosen]
        routes = routes.astype(np.int32)
        for layer in range(LAYERS):
            placed = torch.from_numpy(routes[layer]).to(device)
            access(state, placed, layer * E, placement, "decayed", E, flights=flights)
            flat = np.unique(routes[layer]) + layer * E
            num_misses = int(np.count_nonzero(cache.slot_of[flat] == NOWHERE))
            wanted = cache.access(flat, quota[min(num_misses, len(quota) - 1)], 1)
            check_placement(routes[layer], layer * E, placement, wanted, cache.slot_of)
            pairs = sum(int((routes[layer] == expert - layer * E).sum()) for expert, _ in wanted.coming)
            assert placement.counts[3:].tolist() == [pairs, begun]
            await_copies(placement.counts, flights, programs)
            if layer + 1 == LAYERS:
                continue
            expected = routes[layer + 1].copy()
            expected[rng.random(expected.shape) < 0.3] = -1
            flights[1] -= int(step == 2)  # one program still copies
            flights[2] = E if step == 3 else 0  # layers are too short
            its_ids = torch.from_numpy(expected).to(device)
            look_ahead(state, its_ids, (layer + 1) * E, placement, flights, programs, row, count)
            ahead = None
            if step not in (2, 3):
                order = expected.T.reshape(-1)
                ahead = cache.look_ahead(np.where(order < 0, -1, order + (layer + 1) * E))
            assert [tuple(each) for each in row[: count[0]].tolist()] == ([] if ahead is None else [ahead])
            begun += ahead is not None
            flights[1] = begun * programs  # it has ended
            check_state(state, cache)


def test_refuses_more_pairs_than_it_compares(device: str) -> None:
    state, placement = Residency.make(8, 2, (0, 1), [1], device), Placement.make(1, 2, 8, device)
    flights, row, count = (
        torch.zeros(shape, dtype=torch.int32, device=device) for shape in ((3,), (1, 2), (1,))
    )
    ids = torch.zeros((1, MAX_PAIRS + 1), dtype=torch.int32, device=device)
    with pytest.raises(ValueError, match=f"pairs must lie in 1 to {MAX_PAIRS}"):
        look_ahead(state, ids, 0, placement, flights, 1, row, count)
