"""The residency kernel against ``ExpertCache``: every integer of state, placement and counters."""

from dataclasses import astuple

import numpy as np
import pytest
import torch

from ftd.engine.expert_cache import EPOCH_HALF_LIVES, NOWHERE, Access, Clock, ExpertCache, Policy
from ftd.kernels.expert_split import NUM_SIZES
from ftd.kernels.residency_state import Placement, Residency
from ftd.kernels.residency_triton import access, advance

E, LAYERS = 12, 3


def weights_of(half_life: int) -> list[int]:
    """Return what a use adds at each age within a half-life."""
    clock = Clock(half_life)
    weights = []
    for _ in range(half_life):
        weights.append(clock.weight)
        clock.advance()
    return weights


def check_state(state: Residency, cache: ExpertCache) -> None:
    """Assert that both hold the same."""
    for name in ("slot_of", "owner_of", "last_use", "score"):
        np.testing.assert_array_equal(getattr(state, name).cpu().numpy(), getattr(cache, name), name)
    assert tuple(state.counters.tolist()) == astuple(cache.counters)


def check_placement(
    ids: np.ndarray, first: int, placement: Placement, wanted: Access, slot_of: np.ndarray
) -> None:
    """Assert that every pair runs where the cache says; slot_of: of all experts, after the access."""
    filled = dict(wanted.fills) | dict(wanted.coming)
    where = dict(zip(wanted.ids, wanted.slots, strict=True))
    hits, fills, on_cpu = (each.cpu().numpy() for each in (placement.hits, placement.fills, placement.on_cpu))
    for (token, choice), expert in np.ndenumerate(ids):
        flat = first + int(expert)
        slot = where.get(flat, NOWHERE) if expert >= 0 else NOWHERE
        is_fill = flat in filled and expert >= 0
        assert fills[token, choice] == (expert if is_fill else NOWHERE)
        assert hits[token, choice] == (expert if slot != NOWHERE and not is_fill else NOWHERE)
        assert on_cpu[token, choice] == (expert if expert >= 0 and slot == NOWHERE else NOWHERE)
        if is_fill:
            assert placement.slot_of[expert] == slot
        elif slot != NOWHERE:
            assert slot_of[flat] == slot
    num_fetched, num_warm, num_on_cpu = placement.counts.tolist()
    assert [tuple(row) for row in placement.fetch[:num_fetched].tolist()] == list(wanted.fills)
    assert [tuple(row) for row in placement.warm[:num_warm].tolist()] == list(wanted.warm)
    assert num_on_cpu == wanted.num_misses - num_fetched


@pytest.mark.parametrize("steps", [2, pytest.param(16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("policy", ["lru", "decayed"])
@pytest.mark.parametrize(
    ("tokens", "chosen", "slots", "transient", "quota", "warm", "half_life"),
    [
        (1, 4, 16, 2, (0, 0, 1, 2), 1, 3),
        (1, 4, 3, 1, (0, 1, 2, 3), None, 32),
        (5, 3, 20, 0, (0, 1, 1, 2, 3, 4), 2, 1),
        (3, 2, 0, 2, (0, 1), None, 2),
        (2, 5, 36, 3, (0, 9), 0, 2),
        (25, 3, 20, 2, (0, 1, 2, 3, 4), 2, 3),  # more pairs than are compared each with each
        (128, 8, 20, 2, (0, 1, 2, 3, 4), 2, 3),  # as many as there may be
    ],
)
def test_equals_the_cache(
    device: str,
    rng: np.random.Generator,
    policy: Policy,
    tokens: int,
    chosen: int,
    slots: int,
    transient: int,
    quota: tuple[int, ...],
    warm: int | None,
    half_life: int,
    steps: int,
) -> None:
    cache = ExpertCache(LAYERS * E, slots, policy, transient, half_life)
    state = Residency.make(LAYERS * E, slots, quota, weights_of(half_life), device)
    state.set_quota(quota, None if warm is None else [warm] * len(quota))
    placement = Placement.make(tokens, chosen, E, device)
    popularity = rng.random((LAYERS, E)) ** 3
    for _ in range(steps):
        cache.advance()
        advance(state, EPOCH_HALF_LIVES)
        for layer in range(LAYERS):
            order = rng.random((tokens, E)) * popularity[layer]
            ids = np.argsort(-order, axis=1)[:, :chosen].astype(np.int32)
            ids[rng.random(tokens) < 0.15] = -1
            # As for what a prompt leaves: layers to come keep theirs
            owner_end = (layer + 1) * E if tokens == 5 else None
            its_ids = torch.from_numpy(ids).to(device)
            access(state, its_ids, layer * E, placement, policy, transient, owner_end)
            flat = np.where(ids < 0, -1, ids + layer * E).reshape(-1)
            misses = np.unique(flat[flat >= 0])
            num_misses = int(np.count_nonzero(cache.slot_of[misses] == NOWHERE))
            wanted = cache.access(flat, quota[min(num_misses, len(quota) - 1)], warm, owner_end)
            cache.check()
            check_placement(ids, layer * E, placement, wanted, cache.slot_of)
            check_state(state, cache)


def test_scores_are_halved_at_the_end_of_an_epoch(device: str) -> None:
    cache = ExpertCache(8, 2, "decayed", 0, 1)
    state = Residency.make(8, 2, (0, 1), weights_of(1), device)
    placement = Placement.make(1, 2, 8, device)
    for step in range(EPOCH_HALF_LIVES + 3):
        cache.advance()
        advance(state, EPOCH_HALF_LIVES)
        ids = np.array([[step % 8, (step + 3) % 8]], np.int32)
        access(state, torch.from_numpy(ids).to(device), 0, placement)
        cache.access(ids.reshape(-1), 1)
        check_state(state, cache)


def test_refuses_what_does_not_fit(device: str) -> None:
    state = Residency.make(8, 2, (0, 1), [1], device)
    ids = torch.zeros((2, 2), dtype=torch.int32, device=device)
    with pytest.raises(ValueError, match=r"placement must be int32 \[2, 2\]"):
        access(state, ids, 0, Placement.make(1, 2, 8, device))
    with pytest.raises(ValueError, match="lru decayed, got fifo"):
        access(state, ids, 0, Placement.make(2, 2, 8, device), "fifo")
    with pytest.raises(ValueError, match="slots must lie in 0 to 32768, got 32769"):
        Residency.make(8, 32769, (0, 1), [1], device)


def test_steps_of_each_size_have_a_quota_of_their_own(device: str) -> None:
    state = Residency.make(8, 0, (0, 0, 0), [1], device)
    state.set_quota([[0, size, size] for size in range(NUM_SIZES)], [0, 0, 0])
    for tokens, filled in ((1, 0), (2, 1), (3, 2), (4, 2)):
        placement = Placement.make(tokens, 2, 8, device)
        ids = torch.tensor([[0, 1]] * tokens, dtype=torch.int32, device=device)
        access(state, ids, 0, placement, num_transient=8)
        assert placement.counts.tolist() == [filled, 0, 2 - filled]
