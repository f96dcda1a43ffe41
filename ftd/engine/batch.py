"""One step's work as numbers: which tokens of which sequences run, and the int32 arrays that a graph reads.

flat tokens    | sequence 0 | sequence 1 |      sequence 2       |     T tokens, B sequences
q_start        0            1            2                       T
logit_rows     0            1                                 T-1      rows whose logits are wanted
"""

from typing import NamedTuple

import msgspec
import numpy as np

from ftd.engine.plan import Plan
from ftd.engine.sequence import Sequence
from ftd.kernels.step import Step


class Entry(NamedTuple):
    """``num_tokens`` ids of ``sequence`` from ``start`` on; the last one's logits if ``wants_logits``."""

    sequence: Sequence
    start: int
    num_tokens: int
    wants_logits: bool


class StepArrays:
    """The arrays of a step at the plan's largest sizes, allocated once and filled for each batch."""

    def __init__(self, plan: Plan) -> None:
        self.page_size = plan.page_size
        self.ids = np.zeros(plan.max_step_tokens, np.int32)
        self.positions = np.zeros(plan.max_step_tokens, np.int32)
        self.kv_index = np.zeros(plan.max_step_tokens, np.int32)
        self.q_start = np.zeros(plan.max_sequences + 1, np.int32)
        self.kv_len = np.zeros(plan.max_sequences, np.int32)
        self.page_table = np.zeros((plan.max_sequences, plan.max_pages_per_sequence), np.int32)
        self.logit_rows = np.zeros(plan.max_sequences, np.int32)
        self.state_index = np.zeros(plan.max_sequences, np.int32)
        self._decode: dict[int, Step] = {}

    def cut(self, num_tokens: int, num_sequences: int, num_logits: int) -> Step:
        """Return the first rows as views; models without recurrent states do not look at theirs."""
        return Step(
            self.ids[:num_tokens],
            self.positions[:num_tokens],
            self.kv_index[:num_tokens],
            self.q_start[: num_sequences + 1],
            self.kv_len[:num_sequences],
            self.page_table[:num_sequences],
            self.logit_rows[:num_logits],
            self.state_index[:num_sequences],
        )

    def cut_decode(self, num_sequences: int) -> Step:
        """Return the first rows of a step of one token a sequence; made once, as such steps are many."""
        step = self._decode.get(num_sequences)
        if step is None:
            step = self._decode[num_sequences] = self.cut(num_sequences, num_sequences, num_sequences)
        return step


class Batch(msgspec.Struct, frozen=True):
    """The sequences of one step in the order of their rows: decode first, then prefill chunks."""

    entries: tuple[Entry, ...]

    @property
    def num_tokens(self) -> int:
        """T: tokens of the step."""
        return sum(entry.num_tokens for entry in self.entries)

    @property
    def num_sequences(self) -> int:
        """B: sequences of the step."""
        return len(self.entries)

    @property
    def sampled_sequences(self) -> list[Sequence]:
        """The sequences that get a token from this step, in the order of ``logit_rows``."""
        return [entry.sequence for entry in self.entries if entry.wants_logits]

    def fill(self, arrays: StepArrays) -> Step:
        """Write this batch into ``arrays`` and return the views to run."""
        size = arrays.page_size
        row = num_logits = 0
        for b, (sequence, start, count, wants_logits) in enumerate(self.entries):
            end = row + count
            pages = np.frombuffer(sequence.pages, np.int32)
            arrays.page_table[b, : len(pages)] = pages
            if count == 1:
                # A step that is launched ahead reads the id where it is sampled
                arrays.ids[row] = sequence.ids[start] if start < len(sequence.ids) else 0
                arrays.positions[row] = start
                arrays.kv_index[row] = sequence.pages[start // size] * size + start % size
            else:
                positions = np.arange(start, start + count, dtype=np.int32)
                arrays.ids[row:end] = np.frombuffer(sequence.ids, np.int32)[start : start + count]
                arrays.positions[row:end] = positions
                arrays.kv_index[row:end] = pages[positions // size] * size + positions % size
            arrays.kv_len[b] = start + count
            arrays.state_index[b] = sequence.slot
            row = end
            arrays.q_start[b + 1] = row
            if wants_logits:
                arrays.logit_rows[num_logits] = row - 1
                num_logits += 1
        num_sequences = len(self.entries)
        if row == num_sequences == num_logits:
            return arrays.cut_decode(num_sequences)
        return arrays.cut(row, num_sequences, num_logits)
