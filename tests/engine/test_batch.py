"""Step arrays, checked against numbers worked out by hand."""

from array import array

import numpy as np

from ftd.engine.batch import Batch, Entry, StepArrays
from ftd.engine.plan import Plan
from ftd.engine.sequence import Sequence

PLAN = Plan(
    page_size=4,
    num_pages=10,
    max_sequences=3,
    context_tokens=12,
    prefill_chunk_tokens=8,
    weight_bytes=0,
    kv_bytes=0,
    workspace_bytes=0,
)


def sequence(ids: list[int], pages: list[int], computed_len: int) -> Sequence:
    result = Sequence.from_prompt(0, ids)
    result.pages, result.computed_len = array("i", pages), computed_len
    return result


def test_fill_writes_decode_and_prefill_rows() -> None:
    decode = sequence([10, 11, 12, 13, 14, 15], [7, 2], 5)
    chunk = sequence([20, 21, 22, 23, 24, 25, 26, 27, 28], [0, 9], 3)
    tail = sequence([30, 31, 32], [5], 0)
    decode.slot, chunk.slot, tail.slot = 4, 0, 2
    batch = Batch((Entry(decode, 5, 1, True), Entry(chunk, 3, 5, False), Entry(tail, 0, 3, True)))
    step = batch.fill(StepArrays(PLAN))
    assert step.ids.tolist() == [15, 23, 24, 25, 26, 27, 30, 31, 32]
    assert step.positions.tolist() == [5, 3, 4, 5, 6, 7, 0, 1, 2]
    assert step.kv_index.tolist() == [2 * 4 + 1, 3, 36, 37, 38, 39, 20, 21, 22]
    assert step.q_start.tolist() == [0, 1, 6, 9]
    assert step.kv_len.tolist() == [6, 8, 3]
    assert step.page_table[0, :2].tolist() == [7, 2]
    assert step.page_table[1, :2].tolist() == [0, 9]
    assert step.page_table[2, :1].tolist() == [5]
    assert step.logit_rows.tolist() == [0, 8]
    assert step.state_index.tolist() == [4, 0, 2]
    assert batch.num_tokens == 9 and batch.num_sequences == 3
    assert batch.sampled_sequences == [decode, tail]


def test_fill_reuses_the_arrays_and_all_views_are_contiguous_int32() -> None:
    arrays = StepArrays(PLAN)
    long = Batch((Entry(sequence([1] * 9, [1, 2, 3], 0), 0, 8, False),))
    short = Batch((Entry(sequence([1], [4], 0), 0, 1, True),))
    long.fill(arrays)
    step = short.fill(arrays)
    assert step.ids.base is arrays.ids
    assert all(view.dtype == np.int32 and view.flags.c_contiguous for view in step)
    assert step.page_table.shape == (1, PLAN.max_pages_per_sequence)
    assert [len(view) for view in step] == [1, 1, 1, 2, 1, 1, 1, 1]


def test_a_sequence_can_grow_after_fill() -> None:
    grown = sequence([1, 2, 3], [4], 0)
    Batch((Entry(grown, 0, 3, True),)).fill(StepArrays(PLAN))
    grown.ids.append(4)
    grown.pages.extend([5, 6])
    assert list(grown.pages) == [4, 5, 6]
