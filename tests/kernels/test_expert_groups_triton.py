"""group_pairs against a stable sort of the pairs in NumPy; blocks and counters against counting by hand."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from ftd.kernels.expert_groups_triton import Groups, group_pairs, num_blocks, prefill_group


@triton.jit
def read_group(order, starts, ends, experts, pairs, E, BT: tl.constexpr, EXPERTS: tl.constexpr):
    """Store what prefill_group says of each block; expert -1 where there is none."""
    group = tl.program_id(0)
    expert, has_work, its = prefill_group(group, order, starts, ends, E, BT, EXPERTS)
    tl.store(experts + group, tl.where(has_work, expert, -1))
    tl.store(pairs + group * BT + tl.arange(0, BT), its)


def make_groups(num_pairs: int, num_experts: int, device: str) -> Groups:
    """Return groups whose memory holds nonsense but for the counts."""

    def nonsense(count: int) -> torch.Tensor:
        return torch.full((count,), 12345678, dtype=torch.int32, device=device)

    counts = torch.zeros(num_experts, dtype=torch.int32, device=device)
    return Groups(
        nonsense(num_pairs), nonsense(num_pairs), nonsense(num_experts + 1), nonsense(num_experts), counts
    )


@pytest.mark.parametrize(
    ("tokens", "chosen", "experts", "block"),
    [(1, 1, 1, 16), (7, 3, 5, 16), (40, 4, 37, 16), (90, 2, 2, 64), (33, 1, 300, 16)],
)
def test_every_pair_is_in_one_block_of_its_expert(
    device: str, rng: np.random.Generator, tokens: int, chosen: int, experts: int, block: int
) -> None:
    ids = np.stack([rng.permutation(experts)[:chosen] for _ in range(tokens)]).astype(np.int32)
    ids[rng.random(tokens) < 0.2] = -1
    groups = make_groups(tokens * chosen, experts, device)
    uses = torch.arange(experts + 1, dtype=torch.int64, device=device)
    for _ in range(2):  # counts are zero again for the second
        group_pairs(torch.from_numpy(ids).to(device), groups, block, uses)
    bound = num_blocks(tokens * chosen, experts, block)
    found = torch.full((bound,), 99, dtype=torch.int32, device=device)
    pairs = torch.full((bound, block), 99, dtype=torch.int32, device=device)
    read_group[(bound,)](
        groups.order, groups.starts, groups.ends, found, pairs, experts, BT=block,
        EXPERTS=triton.next_power_of_2(experts),
    )  # fmt: skip
    flat = ids.reshape(-1)
    used = found.cpu().numpy() >= 0
    rows, columns = np.nonzero(pairs.cpu().numpy() >= 0)
    its = pairs.cpu().numpy()[rows, columns]
    assert sorted(its.tolist()) == np.flatnonzero(flat >= 0).tolist()
    np.testing.assert_array_equal(flat[its], found.cpu().numpy()[rows])
    counts = np.bincount(flat[flat >= 0], minlength=experts)
    assert used.sum() == (-(-counts // block)).sum()
    wanted = np.arange(experts + 1) + 2 * np.append(counts, np.count_nonzero(counts))
    np.testing.assert_array_equal(uses.cpu().numpy(), wanted)


def test_no_choice_takes_more_blocks_than_the_bound() -> None:
    for pairs, experts, block in ((1, 8, 16), (64, 3, 16), (63, 64, 16), (500, 4, 64)):
        lone = min(pairs, experts) - 1
        worst = lone + -(-(pairs - lone) // block)
        assert worst <= num_blocks(pairs, experts, block) <= worst + 1
