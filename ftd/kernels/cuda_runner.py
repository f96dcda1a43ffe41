"""Runs a finished GPU program: decode steps replay a captured graph, others launch kernel after kernel."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ftd.kernels.cuda_program import Op
from ftd.kernels.cuda_step import DeviceStep, StepMemory
from ftd.kernels.step import Limits, Step

# Rows of the captured decode graphs; a bucket more costs one capture at load, a bucket less idle rows.
BUCKETS = (1, 2, 4, 8, 16)
# Prompts for which kernels are built at load, one of each class of launches: no user waits for a compiler.
PROMPTS = (32, 64, 128, 256, 512)


class Runner:
    """Owns the arrays of a step and the captured graphs. One thread at a time."""

    def __init__(self, program: list[Op], limits: Limits, block_sizes: set[int], device: str) -> None:
        self._program, self._limits, self._block_sizes = program, limits, block_sizes
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._steps = StepMemory(limits, device)
        self._step: DeviceStep | None = None
        self.num_bytes = self._steps.num_bytes
        if device != "cpu":
            self._capture()
            for num_tokens in PROMPTS:
                self.warm(num_tokens)

    def run(self, step: Step, sampled: torch.Tensor | None) -> None:
        """Launch one step; its arrays live until the one after the next."""
        num_tokens, bucket = len(step.ids), 0
        if num_tokens == len(step.kv_len) == len(step.logit_rows):
            bucket = next((rows for rows in self._graphs if rows >= num_tokens), 0)
        self._step = self._steps.upload(step, bucket, self._block_sizes, sampled)
        if bucket:
            self._graphs[bucket].replay()
            return
        for op in self._program:
            op.run(self._step)

    def warm(self, num_tokens: int) -> None:
        """Run a prompt of ``num_tokens`` that leaves nothing behind, if a step can hold it."""
        columns = -(-num_tokens // self._limits.page_size)
        if num_tokens > self._limits.max_tokens or columns > self._limits.max_pages_per_sequence:
            return

        def zeros(*shape: int) -> NDArray[np.int32]:
            return np.zeros(shape, np.int32)

        ends = np.array([num_tokens], np.int32)
        step = Step(
            zeros(num_tokens),
            np.arange(num_tokens, dtype=np.int32),
            np.full(num_tokens, -1, np.int32),
            np.concatenate([zeros(1), ends]),
            ends,
            zeros(1, columns),
            zeros(1),
            zeros(1),
        )
        self.run(step, None)

    def time_by_kind(self, num_rows: int, repeats: int = 20) -> dict[str, tuple[int, float]]:
        """Return for each kind of op how many a step has and the microseconds that they take together.

        Runs them on the arrays of the last step, as decode of ``num_rows`` rows; what buffers hold is lost.
        """
        kinds: dict[str, list[Op]] = {}
        for op in self._program:
            kinds.setdefault(type(op).__name__, []).append(op)
        step = self._steps.views(num_rows, num_rows, num_rows, num_rows, {})
        found = {}
        for kind, members in kinds.items():
            graph = _captured(members, step)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            graph.replay()
            begin.record()
            for _ in range(repeats):
                graph.replay()
            end.record()
            end.synchronize()
            found[kind] = len(members), begin.elapsed_time(end) * 1e3 / repeats
        return found

    def _capture(self) -> None:
        """Capture the program once for each bucket; the pages that padding touches are none."""
        largest = min(self._limits.max_sequences, self._limits.max_logits, self._limits.max_tokens)
        buckets = [rows for rows in BUCKETS if rows < largest] + [min(largest, BUCKETS[-1])]
        for rows in buckets:
            step = self._steps.idle(rows)
            self._graphs[rows] = _captured(self._program, step)


def _captured(program: Sequence[Op], step: DeviceStep) -> torch.cuda.CUDAGraph:
    """Return a graph of ``program`` on the arrays of ``step``."""
    # The first launches compile and load kernels, which a capture must not do
    for op in program:
        op.run(step)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for op in program:
            op.run(step)
    return graph
