"""Runner of a GPU program: the sizes that steps are padded to, and which of them runs a step."""

from typing import Any

import numpy as np
import pytest
import torch

from ftd.kernels.attention_spread import Spread
from ftd.kernels.cuda_runner import BUCKETS, PROMPT_BUCKETS, Runner
from ftd.kernels.cuda_step import Bucket, DeviceStep
from ftd.kernels.step import Limits, Step


class Op:
    """Notes the steps that it runs; launches of up to ``fixed_tokens`` do not depend on a step's lengths."""

    def __init__(self, name: str, log: list[tuple[str, DeviceStep]], fixed_tokens: int = 1 << 20) -> None:
        self.name, self.log, self.fixed_tokens = name, log, fixed_tokens

    def is_fixed(self, num_tokens: int) -> bool:
        return num_tokens <= self.fixed_tokens

    def run(self, step: DeviceStep) -> None:
        self.log.append((self.name, step))


def limits(**changes: int) -> Limits:
    sizes = {
        "max_tokens": 300,
        "max_sequences": 20,
        "max_logits": 20,
        "page_size": 16,
        "max_pages_per_sequence": 8,
    }
    return Limits(**(sizes | changes))


def make(log: list[Any], sizes: Limits | None = None, fixed_tokens: int = 1 << 20) -> Runner:
    program: Any = [Op("first", log), Op("second", log, fixed_tokens)]
    return Runner(program, sizes or limits(), {Spread(16)}, "cpu")


def step(lengths: list[int], num_logits: int | None = None) -> Step:
    ends = np.cumsum(lengths).astype(np.int32)
    total = int(ends[-1])
    return Step(
        ids=np.arange(total, dtype=np.int32),
        positions=np.concatenate([np.arange(n) for n in lengths]).astype(np.int32),
        kv_index=np.arange(total, dtype=np.int32),
        q_start=np.concatenate(([0], ends)).astype(np.int32),
        kv_len=np.array(lengths, np.int32),
        page_table=np.zeros((len(lengths), 8), np.int32),
        logit_rows=(ends - 1)[:num_logits].astype(np.int32),
        state_index=np.arange(len(lengths), dtype=np.int32),
    )


def sizes_of(found: DeviceStep) -> tuple[int, int]:
    return found.num_tokens, len(found.kv_len)


def test_ops_run_in_their_order_on_the_step_as_it_is() -> None:
    log: list[tuple[str, DeviceStep]] = []
    runner = make(log)
    runner.run(step([1, 1, 1]), None)
    assert [name for name, _ in log] == ["first", "second"]
    assert log[0][1] is log[1][1] and sizes_of(log[0][1]) == (3, 3)


@pytest.mark.parametrize(
    ("lengths", "padded"),
    [
        ([1], (1, 1)),
        ([1] * 3, (4, 4)),
        ([1] * 16, (16, 16)),
        ([1] * 17, (17, 17)),  # more than any bucket
        ([5], (16, 16)),
        ([16], (16, 16)),
        ([17], (32, 16)),
        ([1, 1, 60], (64, 16)),
        ([128], (128, 16)),
        ([129], (129, 1)),
        ([2] * 16, (32, 16)),
        ([2] * 17, (34, 17)),
    ],
)
def test_a_step_is_padded_to_the_smallest_size_that_holds_it(
    lengths: list[int], padded: tuple[int, int]
) -> None:
    log: list[tuple[str, DeviceStep]] = []
    runner = make(log)
    runner.pad()
    runner.run(step(lengths), None)
    assert sizes_of(log[0][1]) == padded
    assert log[0][1].ids[: sum(lengths)].tolist() == list(range(sum(lengths)))


def test_a_step_of_one_token_each_without_all_logits_is_no_decode() -> None:
    """The last token of a chunk of a prompt wants none."""
    log: list[tuple[str, DeviceStep]] = []
    runner = make(log)
    runner.pad()
    runner.run(step([1, 1], num_logits=1), None)
    assert sizes_of(log[0][1]) == (16, 16)


@pytest.mark.parametrize(
    ("sizes", "decode", "prompts"),
    [
        (limits(), [1, 2, 4, 8, 16], [16, 32, 64, 128]),
        (limits(max_sequences=5), [1, 2, 4, 5], [16, 32, 64, 128]),
        (limits(max_sequences=4), [1, 2, 4], [16, 32, 64, 128]),
        (limits(max_sequences=1), [1], [16, 32, 64, 128]),
        (limits(max_logits=3), [1, 2, 3], [16, 32, 64, 128]),
        (limits(max_tokens=40), [1, 2, 4, 8, 16], [16, 32]),
        (limits(max_tokens=6), [1, 2, 4, 6], []),
    ],
)
def test_sizes_end_where_the_largest_step_does(sizes: Limits, decode: list[int], prompts: list[int]) -> None:
    runner = make([], sizes)
    runner.pad()
    rows = decode[-1]
    assert runner._buckets == [
        *(Bucket(n, n, True) for n in decode),
        *(Bucket(n, rows, False) for n in prompts),
    ]


@pytest.mark.parametrize(("fixed_tokens", "prompts"), [(15, []), (16, [16]), (64, [16, 32, 64])])
def test_prompts_are_captured_only_as_far_as_no_launch_depends_on_their_lengths(
    fixed_tokens: int, prompts: list[int]
) -> None:
    runner = make([], fixed_tokens=fixed_tokens)
    runner.pad()
    assert [bucket.tokens for bucket in runner._buckets if not bucket.is_decode] == prompts
    assert set(prompts) <= set(PROMPT_BUCKETS) and len(BUCKETS) == 5


@pytest.mark.parametrize(("num_tokens", "runs"), [(1, 2), (128, 2), (129, 0), (301, 0)])
def test_warming_up_stores_nothing(num_tokens: int, runs: int) -> None:
    """And does not run at all where no step can be so long: 8 pages of 16 are 128 keys."""
    log: list[tuple[str, DeviceStep]] = []
    runner = make(log)
    runner.warm(num_tokens)
    assert len(log) == runs
    if runs:
        found = log[0][1]
        assert (found.kv_index == -1).all() and found.positions.tolist() == list(range(num_tokens))
        assert found.kv_len.tolist() == [num_tokens]


def test_ids_of_the_step_before_are_read_where_they_are() -> None:
    log: list[tuple[str, DeviceStep]] = []
    runner = make(log)
    runner.pad()
    runner.run(step([1, 1]), torch.tensor([51, 52], dtype=torch.int32))
    assert log[0][1].ids.tolist() == [51, 52]
