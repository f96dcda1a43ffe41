"""Arrays of a step on a card, which torch's processor plays: what a step says, padding that does nothing."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ftd.kernels.attention_spread import Spread, prefill_blocks
from ftd.kernels.cuda_step import Bucket, DeviceStep, StepMemory
from ftd.kernels.step import Limits, Step

LIMITS = Limits(max_tokens=64, max_sequences=6, max_logits=6, page_size=4, max_pages_per_sequence=5)
SPREADS = (Spread(16), Spread(4, 7), Spread(8, 3, 12))
NAMES = ("ids", "positions", "kv_index", "q_start", "kv_len", "state_index", "logit_rows")


def make_step(lengths: list[int], cached: list[int], seed: int = 0, columns: int = 5) -> Step:
    """A step of sequences that add so many tokens to so many that are cached."""
    rng = np.random.default_rng(seed)
    ends = np.cumsum(lengths).astype(np.int32)
    kv_len = np.array([n + more for n, more in zip(lengths, cached, strict=True)], np.int32)
    starts = np.repeat(kv_len - np.array(lengths, np.int32), lengths)
    offsets = np.concatenate([np.arange(n) for n in lengths])
    total = int(ends[-1])
    return Step(
        ids=rng.integers(1, 90, total).astype(np.int32),
        positions=(starts + offsets).astype(np.int32),
        kv_index=rng.integers(0, 100, total).astype(np.int32),
        q_start=np.concatenate(([0], ends)).astype(np.int32),
        kv_len=kv_len,
        page_table=rng.integers(0, 25, (len(lengths), columns)).astype(np.int32),
        logit_rows=(ends - 1).astype(np.int32),
        state_index=rng.permutation(6)[: len(lengths)].astype(np.int32),
    )


@st.composite
def steps(draw: st.DrawFn) -> Step:
    """Decode first, as a batch has it, then prompts."""
    decode = draw(st.integers(0, 6))
    prompts = draw(st.lists(st.integers(2, 9), max_size=6 - decode))
    lengths = [1] * decode + prompts
    if not lengths:
        lengths = [draw(st.integers(1, 20))]
    cached = [draw(st.integers(0, max(0, 20 - n))) for n in lengths]
    return make_step(lengths, cached, draw(st.integers(0, 1000)), draw(st.integers(1, 5)))


def memory() -> StepMemory:
    return StepMemory(LIMITS, SPREADS, "cpu")


def check(found: DeviceStep, step: Step, tokens: int, sequences: int) -> None:
    """Fail unless the beginning of each array is what the step says."""
    sizes = {"ids": tokens, "positions": tokens, "kv_index": tokens, "q_start": sequences + 1}
    for name in NAMES:
        values, wanted = getattr(found, name), getattr(step, name)
        assert values.tolist()[: len(wanted)] == wanted.tolist(), name
        if name != "logit_rows":
            assert len(values) == sizes.get(name, sequences), name
    used = step.page_table.shape[1]
    assert found.page_table.shape[0] == sequences
    assert found.page_table[: len(step.kv_len), :used].tolist() == step.page_table.tolist()


def num_first(step: Step) -> int:
    """Count the sequences that come first with one token each."""
    lengths = np.diff(step.q_start).tolist()
    return next((i for i, n in enumerate(lengths) if n != 1), len(lengths))


@given(st.lists(steps(), min_size=1, max_size=4))
def test_each_step_is_there_whatever_was_there_before(made: list[Step]) -> None:
    steps_of = memory()
    for step in made:
        found = steps_of.upload(step, None)
        check(found, step, len(step.ids), len(step.kv_len))
        assert (found.num_tokens, found.num_logits) == (len(step.ids), len(step.logit_rows))
        assert found.num_decode == num_first(step)
        assert found.decode_len.tolist() == step.kv_len[: found.num_decode].tolist()
        if found.num_decode == len(step.kv_len):
            assert found.blocks == {}
            continue
        assert set(found.blocks) == set(SPREADS)
        for spread, blocks in found.blocks.items():
            wanted = prefill_blocks(step.q_start, step.kv_len, spread, found.num_decode)
            assert blocks.rows.tolist() == wanted.tolist()
            assert blocks.is_shared == bool((wanted[:, 3] > 1).any())


BUCKETS = [Bucket(n, n, True) for n in (1, 2, 4, 6)] + [Bucket(n, 6, False) for n in (16, 32, 64)]


@given(st.lists(st.tuples(steps(), st.integers(0, 6)), min_size=1, max_size=4))
def test_padding_does_nothing(made: list[tuple[Step, int]]) -> None:
    """Rows that store nothing, sequences of no length, blocks that are none."""
    steps_of = memory()
    for step, skip in made:
        tokens, sequences = len(step.ids), len(step.kv_len)
        is_decode = tokens == sequences
        fitting = [
            bucket
            for bucket in BUCKETS
            if tokens <= bucket.tokens and sequences <= bucket.sequences and bucket.is_decode == is_decode
        ]
        if not fitting:
            continue
        bucket = fitting[skip % len(fitting)]
        found = steps_of.upload(step, bucket)
        check(found, step, bucket.tokens, bucket.sequences)
        assert (found.kv_index[tokens:] == -1).all(), "nothing is stored"
        assert not found.ids[tokens:].any() and not found.positions[tokens:].any()
        assert (found.q_start[sequences:] == tokens).all() and not found.kv_len[sequences:].any()
        assert found.num_decode == bucket.num_decode and len(found.logit_rows) == bucket.sequences
        assert not found.logit_rows[sequences:].any() and not found.state_index[sequences:].any()
        alone = min(num_first(step), bucket.num_decode)
        assert found.decode_len.tolist()[:alone] == step.kv_len[:alone].tolist()
        assert not found.decode_len[alone:].any(), "others see no keys as decode"
        if bucket.is_decode:
            assert found.blocks == {}
            continue
        for spread, blocks in found.blocks.items():
            wanted = prefill_blocks(step.q_start, step.kv_len, spread, alone)
            assert blocks.rows[: len(wanted)].tolist() == wanted.tolist()
            assert (blocks.rows[len(wanted) :] == -1).all() and blocks.is_shared
            assert len(blocks.rows) == spread.most(bucket.tokens, bucket.sequences)


@pytest.mark.parametrize("bucket", BUCKETS)
def test_an_idle_step_is_all_padding(bucket: Bucket) -> None:
    steps_of = memory()
    steps_of.upload(make_step([1, 5, 9], [3, 4, 5]), None)
    found = steps_of.idle(bucket)
    assert (found.num_tokens, len(found.kv_len)) == (bucket.tokens, bucket.sequences)
    assert (found.kv_index == -1).all()
    for name in ("ids", "positions", "q_start", "kv_len", "decode_len", "logit_rows"):
        assert not getattr(found, name).any(), name
    assert all((blocks.rows == -1).all() for blocks in found.blocks.values())


def test_addresses_never_change() -> None:
    """A captured graph reads where it was captured."""
    steps_of = memory()
    bucket = Bucket(16, 6, False)
    first = steps_of.idle(bucket)
    second = steps_of.upload(make_step([1, 3], [2, 0]), bucket)
    for name in (*NAMES, "decode_len", "page_table"):
        assert getattr(first, name).data_ptr() == getattr(second, name).data_ptr(), name
    for spread in SPREADS:
        assert first.blocks[spread].rows.data_ptr() == second.blocks[spread].rows.data_ptr()


def test_sections_do_not_touch_each_other() -> None:
    largest = memory().padded(Bucket(64, 6, False))
    tensors = [getattr(largest, name) for name in (*NAMES, "decode_len", "page_table")]
    tensors += [blocks.rows for blocks in largest.blocks.values()]
    spans = sorted((each.data_ptr(), each.data_ptr() + each.nbytes) for each in tensors)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    assert all(start % 64 == spans[0][0] % 64 for start, _ in spans)
    assert spans[-1][1] - spans[0][0] <= memory().num_bytes == StepMemory.count(LIMITS, SPREADS)


def test_ids_that_are_on_the_card_already_are_taken_from_there() -> None:
    steps_of = memory()
    step = make_step([1, 1, 1], [4, 5, 6])
    sampled = torch.tensor([71, 72, 73], dtype=torch.int32)
    found = steps_of.upload(step, Bucket(4, 4, True), sampled)
    assert found.ids.tolist() == [71, 72, 73, 0]


def test_the_copy_of_one_step_is_not_written_over_by_the_next() -> None:
    """It may be under way: two stagings take turns."""
    steps_of = memory()
    stagings: list[Any] = []
    for seed in range(4):
        steps_of.upload(make_step([2, 3], [1, 1], seed), None)
        stagings.append(steps_of._staging.data_ptr())
    assert stagings[0] == stagings[2] != stagings[1] == stagings[3]


@pytest.mark.parametrize(
    ("bucket", "num_decode"),
    [(Bucket(4, 4, True), 4), (Bucket(1, 1, True), 1), (Bucket(16, 4, False), 4), (Bucket(16, 1, False), 0)],
)
def test_a_prompt_alone_takes_no_attention_of_decode(bucket: Bucket, num_decode: int) -> None:
    assert bucket.num_decode == num_decode


class BusyCard:
    """An array whose copies are made when somebody waits for them, or in the end."""

    def __init__(self, array: torch.Tensor) -> None:
        self.array = array
        self.waiting: list[torch.Tensor] = []
        self.num_copied = 0
        self.copied: list[torch.Tensor] = []

    def __getitem__(self, place: slice) -> torch.Tensor:
        return self.array[place]

    def copy_(self, source: torch.Tensor, non_blocking: bool) -> None:
        assert non_blocking
        self.waiting.append(source)

    def work(self, until: int) -> None:
        """Make copies until so many have been made; keep what the array was after each."""
        while self.num_copied < until:
            self.array.copy_(self.waiting[self.num_copied])
            self.num_copied += 1
            self.copied.append(self.array.clone())


class Event:
    """As CUDA has it: stands where it was recorded last."""

    def __init__(self, card: BusyCard) -> None:
        self.card, self.place = card, 0

    def record(self) -> None:
        self.place = len(self.card.waiting)

    def synchronize(self) -> None:
        self.card.work(self.place)


def test_steps_that_nobody_waits_for_reach_a_busy_card_unchanged() -> None:
    """Parts of a long prompt are launched one after the other, while the card does something else."""
    made = memory()
    card = BusyCard(made._array)
    made._array = card  # type: ignore[assignment]
    made._copied = [Event(card), Event(card)]  # type: ignore[list-item]
    its = [make_step([20], [0], seed) for seed in range(7)]
    for number, step in enumerate(its):
        made.upload(step, None)
        assert card.num_copied == max(0, number - 1)  # no longer than it must
    card.work(len(its))
    start, _ = made._offsets["ids"]
    assert [array[start : start + 20].tolist() for array in card.copied] == [
        step.ids.tolist() for step in its
    ]
