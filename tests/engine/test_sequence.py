"""Lengths of a sequence, worked out by hand."""

import pytest

from ftd.engine.sequence import Sequence, Status


def test_a_new_sequence_waits_and_has_its_whole_prompt_to_run() -> None:
    sequence = Sequence.from_prompt(3, [5, 6, 7], max_tokens=9, cache_salt="a")
    assert (sequence.request_id, sequence.max_tokens, sequence.cache_salt) == (3, 9, "a")
    assert (sequence.prompt_len, sequence.num_tokens, sequence.output_len) == (3, 3, 0)
    assert sequence.extend_len == 3 and sequence.is_prefill
    assert sequence.status is Status.WAITING


@pytest.mark.parametrize(
    ("num_output", "computed_len", "extend_len", "is_prefill"),
    [(0, 2, 1, True), (1, 3, 1, False), (4, 6, 1, False), (4, 0, 7, True), (4, 5, 2, True)],
)
def test_decode_is_one_token_after_the_prompt(
    num_output: int, computed_len: int, extend_len: int, is_prefill: bool
) -> None:
    sequence = Sequence.from_prompt(0, [1, 2, 3])
    sequence.ids.extend([9] * num_output)
    sequence.computed_len = computed_len
    assert (sequence.output_len, sequence.extend_len) == (num_output, extend_len)
    assert sequence.is_prefill is is_prefill


@pytest.mark.parametrize("token", [-(2**31) - 1, 2**31])
def test_ids_are_int32(token: int) -> None:
    with pytest.raises(OverflowError):
        Sequence.from_prompt(0, [token])


def test_two_sequences_with_the_same_ids_are_not_the_same() -> None:
    assert Sequence.from_prompt(0, [1]) != Sequence.from_prompt(0, [1])
