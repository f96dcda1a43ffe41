"""A few ops of a recorded GPU program, alone: they are given what they say they read, and nothing else.

Before each op all is poison (NaN) but what it and those behind it say they read. In the end the wanted
buffers and all kept arrays are what the reference graph leaves, and no row has changed that no op says it
writes. Fusion and the sharing of memory believe what ops say; here it is looked at.
"""

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ftd.kernels.cuda_program import Op
from ftd.kernels.cuda_step import DeviceStep
from ftd.kernels.graph_triton import CudaGraph
from ftd.kernels.quant import QuantMatrix
from ftd.kernels.reference_graph import ReferenceGraph

PAGE, COLUMNS, SEQUENCES, IDS, SLOTS = 8, 5, 3, 11, 5
LIMITS: dict[str, Any] = {
    "max_tokens": 40,
    "max_sequences": SEQUENCES,
    "max_logits": SEQUENCES,
    "page_size": PAGE,
    "max_pages_per_sequence": COLUMNS,
}
# A page more than sequences own
PAGES = SEQUENCES * COLUMNS + 1
# New tokens of each sequence and earlier ones; rows of the last are more than products stream
STEPS = {
    "decode": ([1, 1], [17, 3]),
    "beside decode": ([1, 5], [21, 0]),
    "many rows": ([1, 16, 6], [30, 0, 9]),
}


class Given:
    """Records the same into any graph; weights and kept arrays are drawn from one seed."""

    def __init__(self, graph: Any, device: str | None) -> None:
        self.graph, self._device, self._rng = graph, device, np.random.default_rng(5)
        self.kept: list[Any] = []

    def matrix(self, n: int, k: int) -> QuantMatrix:
        """Return an f32 weight."""
        values = self._rng.standard_normal((n, k)).astype(np.float32) / np.float32(k**0.5)
        return QuantMatrix("f32", (n, k), (values,))

    def vector(self, *shape: int) -> NDArray[np.float32]:
        """Return values about 1."""
        return self._rng.uniform(0.5, 1.5, shape).astype(np.float32)

    def keep(self, *shape: int) -> Any:
        """Return what is kept from step to step, where the graph computes."""
        values = self._rng.standard_normal(shape, np.float32)
        self.kept.append(values if self._device is None else torch.tensor(values, device=self._device))
        return self.kept[-1]


Record = Callable[[Given], list[Any]]


def arrays_of(name: str) -> list[NDArray[np.int32]]:
    """Return the arrays of a step of ``STEPS``; the last tokens of two sequences have logits."""
    lengths, starts = STEPS[name]
    table = np.random.default_rng(1).permutation(PAGES - 1).reshape(SEQUENCES, COLUMNS)[: len(lengths)]
    positions = np.concatenate([start + np.arange(n) for n, start in zip(lengths, starts, strict=True)])
    pages = table[np.repeat(np.arange(len(lengths)), lengths), positions // PAGE]
    ends = np.cumsum(lengths)
    arrays = (
        np.arange(sum(lengths)) * 7 % IDS, positions, pages * PAGE + positions % PAGE, [0, *ends],
        np.add(lengths, starts), table, ends[-2:] - 1, [3, 1, 4][: len(lengths)],
    )  # fmt: skip
    return [np.array(each, np.int32) for each in arrays]


def recorded(which: Record, precision: str, device: str) -> tuple[Given, list[Any], Given, list[Any]]:
    """Return what ``which`` recorded into the reference and into a program, and the buffers it wants."""
    kind: Any = precision
    theirs = Given(ReferenceGraph(None, **LIMITS, precision=kind), None)
    ours = Given(CudaGraph(None, **LIMITS, precision=kind, device=device), device)
    return theirs, which(theirs), ours, which(ours)


def check(
    which: Record,
    kinds: list[str],
    step: str,
    device: str,
    *,
    precision: str = "f32",
    tolerance: float = 1e-4,
    padded: bool = False,
    digits: Collection[int] = (),
) -> None:
    """Fail unless the ops of ``kinds`` do what ``which`` means, and touch nothing but what they say.

    tolerance: of wanted buffers, relative to their largest value. digits: which buffers, counted as they are
    made, have values of more digits than bf16.
    """
    theirs, wanted, ours, found = recorded(which, precision, device)
    arrays, rng = arrays_of(step), np.random.default_rng(9)
    for given in (theirs, ours):
        given.graph.finish()
    runner = ours.graph._runner
    if padded:
        runner.pad()
    else:
        runner._buckets = []
    runner._graphs.clear()  # a card too runs op by op
    assert [type(op).__name__ for op in runner._program] == kinds
    runner._program = watched(runner._program, ours.graph._buffers, found)
    for i, (reference, buffer) in enumerate(zip(theirs.graph._memory, ours.graph._buffers, strict=True)):
        memory = theirs.graph._memory[reference]
        values = rng.standard_normal(memory.shape, np.float32)
        memory[:] = values if i in digits else rounded(values)
        if buffer.tensor is not None:
            buffer.tensor.copy_(torch.from_numpy(memory))
    theirs.graph.run(*arrays)
    ours.graph.run(*arrays)
    for reference, buffer in zip(wanted, found, strict=True):
        close(ours.graph.view(buffer), theirs.graph.view(reference), tolerance)
    for values, expected in zip(ours.kept, theirs.kept, strict=True):
        close(values.cpu().numpy(), expected, 1e-4)


class Watched(Op):
    """Poisons what is not ``alive`` before ``op`` runs, and looks whether it wrote what it says."""

    def __init__(self, op: Op, buffers: list[Any], alive: set[Any]) -> None:
        self.op, self.buffers_of_program, self.alive = op, buffers, alive

    def run(self, step: DeviceStep) -> None:
        """Run the op."""
        placed = [buffer for buffer in self.buffers_of_program if buffer.tensor is not None]
        for buffer in placed:
            if buffer not in self.alive:
                buffer.tensor.fill_(torch.nan)
        before = [buffer.tensor.clone() for buffer in placed]
        self.op.run(step)
        written = self.op.buffers(self.op.WRITES)
        rows = {"tokens": step.num_tokens, "logits": step.num_logits}
        for buffer, old in zip(placed, before, strict=True):
            first = rows[buffer.kind] if buffer in written else 0
            assert torch.equal(bits(buffer.tensor[first:]), bits(old[first:])), "written, and nobody says so"


def watched(program: list[Op], buffers: list[Any], wanted: list[Any]) -> list[Op]:
    """Return ``program`` so that before each op all is poison but what ops and ``wanted`` still need."""
    alive, found = set(wanted), []
    for op in reversed(program):
        alive = alive - set(op.buffers(op.WRITES)) | set(op.buffers(op.READS))
        found.append(Watched(op, buffers, alive))
    return found[::-1]


def rounded(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return ``values`` as bf16 has them."""
    found: NDArray[np.float32] = torch.from_numpy(values).bfloat16().float().numpy()
    return found


def bits(values: torch.Tensor) -> torch.Tensor:
    """Return ``values`` as integers: a NaN equals itself."""
    whole = values.contiguous()
    return whole.view(torch.int32 if whole.dtype == torch.float32 else torch.int16)


def close(actual: NDArray[Any], wanted: NDArray[Any], tolerance: float) -> None:
    """Compare relative to the largest value."""
    assert actual.shape == wanted.shape
    assert np.isfinite(actual).all()
    assert np.abs(actual - wanted).max() <= tolerance * np.abs(wanted).max()


def kinds_of(module: Any) -> set[str]:
    """Return the names of the ops that ``module`` defines."""
    ops = {name: each for name, each in vars(module).items() if isinstance(each, type)}
    return {
        name
        for name, each in ops.items()
        if issubclass(each, Op)
        and each is not Op
        and each.__module__ == module.__name__
        and "run" in vars(each)
    }
