"""The state of experts on a card, which torch's processor plays: quotas of steps, copies, messages."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ftd.kernels.expert_split import NUM_SIZES
from ftd.kernels.residency_state import (
    COUNTERS,
    MAX_SLOTS,
    Message,
    Placement,
    Residency,
    quota_table,
    size_of,
)


def make(num_slots: int = 3, quota: Any = (0, 1, 1)) -> Residency:
    return Residency.make(8, num_slots, quota, (16, 8, 4), "cpu")


def test_at_first_all_slots_are_empty() -> None:
    state = make()
    assert state.num_slots == 3
    assert state.slot_of.tolist() == [-1] * 8 and state.owner_of.tolist() == [-1] * 3
    assert state.last_use.tolist() == [-1] * 3 and not state.score.any()
    assert state.clock.tolist() == [16, 0, 0, 0], "a use counts as the youngest weight says"
    assert state.counters.tolist() == [0] * len(COUNTERS)
    assert make(0).num_slots == 0


@pytest.mark.parametrize("num_slots", [-1, MAX_SLOTS + 1])
def test_as_many_slots_as_a_program_can_hold(num_slots: int) -> None:
    with pytest.raises(ValueError, match=f"slots must lie in 0 to {MAX_SLOTS}, got {num_slots}"):
        make(num_slots)


def test_one_quota_is_that_of_steps_of_all_sizes() -> None:
    table = quota_table([0, 1, 1, 2])
    assert table.shape == (2, NUM_SIZES, 4) and table.dtype == torch.int32
    assert table[0].tolist() == [[0, 1, 1, 2]] * NUM_SIZES
    assert (table[1] > 10_000).all(), "beside the step all others may be filled"


def test_each_size_may_have_its_own() -> None:
    quota = [[0, size, size] for size in range(NUM_SIZES)]
    warm = [[0, 0, size] for size in range(NUM_SIZES)]
    state = make()
    address = state.quota.data_ptr()
    state.set_quota(quota, warm)
    assert state.quota.tolist() == [quota, warm]
    assert state.quota.data_ptr() == address, "a captured step reads it where it was"
    state.set_quota([0, 2, 2])
    assert state.quota[0].tolist() == [[0, 2, 2]] * NUM_SIZES


def test_quotas_of_another_number_of_misses_are_refused() -> None:
    with pytest.raises(RuntimeError):
        make().set_quota([0, 1])


@pytest.mark.parametrize(
    ("tokens", "row"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (16, 4), (17, 5), (128, 7)]
)
def test_row_b_is_of_up_to_two_to_the_b_tokens(tokens: int, row: int) -> None:
    assert size_of(tokens) == row
    assert 2 ** (row - 1) < tokens <= 2**row


def test_what_was_saved_comes_back() -> None:
    state = make()
    for name in Residency.__slots__:
        tensor = getattr(state, name)
        tensor.copy_(torch.arange(tensor.numel()).view(tensor.shape))
    before = {name: getattr(state, name).clone() for name in Residency.__slots__}
    saved = state.saved()
    for name in Residency.__slots__:
        getattr(state, name).fill_(7)
    state.restore(saved)
    assert all(torch.equal(getattr(state, name), values) for name, values in before.items())


def test_a_placement_has_room_for_every_pair_and_names_nothing() -> None:
    made = Placement.make(5, 3, 8, "cpu")
    assert {name: tuple(getattr(made, name).shape) for name in Placement.__slots__} == {
        "hits": (5, 3),
        "fills": (5, 3),
        "slot_of": (8,),
        "on_cpu": (5, 3),
        "fetch": (15, 2),
        "warm": (15, 2),
        "counts": (3,),
        "seen": (8,),
    }
    assert not made.counts.any()
    assert all((getattr(made, name) == -1).all() for name in Placement.__slots__ if name != "counts")


def message(rows: int = 4, width: int = 6, chosen: int = 2, dtype: torch.dtype = torch.float32) -> Message:
    box = SimpleNamespace(
        x=torch.zeros(4, 6), on_cpu=torch.zeros(4, 2, dtype=torch.int32)
    )  # for up to 4 tokens
    x = torch.zeros(rows, width, dtype=dtype)
    return Message(box, x, torch.zeros(rows, chosen), 0)  # type: ignore[arg-type]


def test_a_message_that_fits() -> None:
    message().expect(4, 2)
    message(1).expect(1, 2)


@pytest.mark.parametrize(
    ("made", "tokens", "chosen", "text"),
    [
        (message(), 3, 2, r"x must be float32 \[3, 6\], got float32 \[4, 6\]"),
        (message(width=5), 4, 2, r"x must be float32 \[4, 6\], got float32 \[4, 5\]"),
        (message(dtype=torch.bfloat16), 4, 2, r"x must be float32 \[4, 6\], got bfloat16"),
        (message(chosen=3), 4, 3, r"weights must be float32 \[4, 2\], got float32 \[4, 3\]"),
        (message(), 4, 1, r"weights must be float32 \[4, 1\], got float32 \[4, 2\]"),
        (message(5), 5, 2, "tokens must lie in 1 to 4, got 5"),
        (message(0), 0, 2, "tokens must lie in 1 to 4, got 0"),
    ],
)
def test_messages_that_do_not(made: Message, tokens: int, chosen: int, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        made.expect(tokens, chosen)
