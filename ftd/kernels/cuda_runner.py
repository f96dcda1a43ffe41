"""Runs a finished GPU program: small steps replay a captured graph, others launch kernel after kernel."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ftd.kernels.attention_triton import Spread
from ftd.kernels.cuda_program import Op
from ftd.kernels.cuda_step import Bucket, DeviceStep, StepMemory
from ftd.kernels.step import Limits, Step

# Rows of the captured decode graphs; a bucket more costs one capture at load, a bucket less idle rows.
BUCKETS = (1, 2, 4, 8, 16)
# Tokens of the captured graphs of short prompts, which may come beside sequences that decode.
PROMPT_BUCKETS = (16, 32, 64, 128)
# Prompts for which kernels are built at load, one of each class of launches: no user waits for a compiler.
PROMPTS = (32, 64, 128, 256, 512)


class Runner:
    """Owns the arrays of a step and the captured graphs. One thread at a time."""

    def __init__(self, program: list[Op], limits: Limits, spreads: set[Spread], device: str) -> None:
        self._program, self._limits = program, limits
        self._buckets: list[Bucket] = []
        self._graphs: dict[Bucket, torch.cuda.CUDAGraph] = {}
        self._steps = StepMemory(limits, spreads, device)
        self._step: DeviceStep | None = None
        self.num_bytes = self._steps.num_bytes
        if device != "cpu":
            self.pad()
            for bucket in self._buckets:
                self._graphs[bucket] = _captured(program, self._steps.idle(bucket))
            for num_tokens in PROMPTS:
                self.warm(num_tokens)

    def pad(self) -> None:
        """Pad small steps from now on to a few sizes, as captured graphs need it."""
        limits, program = self._limits, self._program
        sequences = min(limits.max_sequences, limits.max_logits, limits.max_tokens, BUCKETS[-1])
        decode = [*(rows for rows in BUCKETS if rows < sequences), sequences]
        prompts = [
            num_tokens
            for num_tokens in PROMPT_BUCKETS
            if num_tokens <= limits.max_tokens and all(op.is_fixed(num_tokens) for op in program)
        ]
        self._buckets = [Bucket(rows, rows, True) for rows in decode]
        self._buckets += [Bucket(num_tokens, sequences, False) for num_tokens in prompts]

    def run(self, step: Step, sampled: torch.Tensor | None) -> None:
        """Launch one step, once the one before the last has begun."""
        bucket = self._bucket(step)
        self._step = self._steps.upload(step, bucket, sampled)
        graph = None if bucket is None else self._graphs.get(bucket)
        if graph is not None:
            graph.replay()
            return
        for op in self._program:
            op.run(self._step)

    def _bucket(self, step: Step) -> Bucket | None:
        """Return the smallest bucket that holds ``step``."""
        num_tokens, num_sequences, num_logits = len(step.ids), len(step.kv_len), len(step.logit_rows)
        is_decode = num_tokens == num_sequences == num_logits
        for bucket in self._buckets:
            holds = num_tokens <= bucket.tokens and max(num_sequences, num_logits) <= bucket.sequences
            if holds and bucket.is_decode == is_decode:
                return bucket
        return None

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
        step = self._steps.padded(Bucket(num_rows, num_rows, True))
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
