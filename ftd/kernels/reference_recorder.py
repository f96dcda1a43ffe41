"""Recorder: the part of ReferenceGraph that all ops need: buffers, the recorded program, its run."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ftd.kernels.step import Limits, Step, check_step

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Precision = Literal["fast", "f32"]


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """Handle of an activation ``[rows, width]`` f32; the graph that made it owns the memory."""

    width: int
    rows: Literal["tokens", "logits"]


class Recorder:
    """Owns the buffers and the program of a graph; classes of ops record into it. One thread at a time."""

    def __init__(
        self,
        pool: object = None,
        *,
        max_tokens: int,
        max_sequences: int,
        max_logits: int,
        page_size: int,
        max_pages_per_sequence: int,
        precision: Precision = "fast",
    ) -> None:
        self._limits = Limits(
            max_tokens=max_tokens,
            max_sequences=max_sequences,
            max_logits=max_logits,
            page_size=page_size,
            max_pages_per_sequence=max_pages_per_sequence,
        )
        if precision not in ("fast", "f32"):
            raise ValueError(f"precision must be fast or f32, got {precision!r}")
        self._precision: Precision = precision
        self._program: list[Callable[[Step], None]] = []
        self._memory: dict[Buffer, Floats] = {}
        self._finished = False
        self._num_rows = {"tokens": 0, "logits": 0}
        self._num_ids = 2**31
        self._num_pages = 2**31 // page_size
        self._num_states = 0  # slots of the smallest array of recurrent states; 0: no op has one

    def buffer(self, width: int) -> Buffer:
        """Return a new activation buffer ``[max_tokens, width]``."""
        return self._new(Buffer(width, "tokens"))

    def logit_buffer(self, width: int) -> Buffer:
        """Return a new buffer ``[max_logits, width]`` for ops after ``select_logit_rows``."""
        return self._new(Buffer(width, "logits"))

    def finish(self) -> None:
        """Allocate the buffers; recording ends."""
        self._refuse_finished()
        count = {"tokens": self._limits.max_tokens, "logits": self._limits.max_logits}
        for buffer in self._memory:
            self._memory[buffer] = np.zeros((count[buffer.rows], buffer.width), np.float32)
        self._finished = True

    def run(
        self,
        ids: Ints,
        positions: Ints,
        kv_index: Ints,
        q_start: Ints,
        kv_len: Ints,
        page_table: Ints,
        logit_rows: Ints,
        state_index: Ints | None = None,
    ) -> None:
        """Run the program on one step; the arguments are the fields of ``Step``.

        No two sequences have one slot of states; one whose first position is 0 starts from zeros, whatever
        its slot holds.

        Raises ValueError if the graph is not finished, a shape or dtype differs or a value lies out of range.
        """
        if not self._finished:
            raise ValueError("finish() must come before run()")
        step = Step(ids, positions, kv_index, q_start, kv_len, page_table, logit_rows, state_index)
        check_step(step, self._limits, self._num_ids, self._num_pages, self._num_states)
        self._num_rows = {"tokens": len(ids), "logits": len(logit_rows)}
        for op in self._program:
            op(step)

    def view(self, buffer: Buffer) -> Floats:
        """Return the rows of ``buffer`` of the last step: f32 [rows, width], valid until the next run."""
        if not self._finished:
            raise ValueError("finish() must come before view()")
        return self._memory[buffer][: self._num_rows[buffer.rows]]

    @property
    def num_bytes(self) -> int:
        """Bytes of all buffers (0 until finished)."""
        return sum(memory.nbytes for memory in self._memory.values())

    def _new(self, buffer: Buffer) -> Buffer:
        self._refuse_finished()
        if buffer.width < 1:
            raise ValueError(f"width must be at least 1, got {buffer.width}")
        self._memory[buffer] = np.empty((0, buffer.width), np.float32)
        return buffer

    def _record(self, op: Callable[[Step], None]) -> None:
        self._refuse_finished()
        self._program.append(op)

    def _refuse_finished(self) -> None:
        if self._finished:
            raise ValueError("the graph is finished")

    def _write(self, buffer: Buffer, values: Floats) -> None:
        self.view(buffer)[:] = values

    def _expect(self, buffer: Buffer, width: int, rows: str) -> None:
        if buffer not in self._memory:
            raise ValueError("the buffer belongs to another graph")
        if (buffer.width, buffer.rows) != (width, rows):
            raise ValueError(f"buffer must be [{rows}, {width}], got [{buffer.rows}, {buffer.width}]")
