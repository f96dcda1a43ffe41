"""Times a pool's layers with forced misses: what ``expert_split`` searches in.

The layers are those of decode but for experts that are there: placed by the residency kernel, mailed,
fetched, computed from slots, collected, captured as one graph. Their ids name experts that are in no slot,
the others' scores are so high that nothing is admitted, and the quota is what the search wants to know. The
pool is as before afterwards, but for staged slots.
"""

import time

import torch

from ftd.kernels import expert_prompt_rates
from ftd.kernels.device_matrix import DeviceBank
from ftd.kernels.expert_ffn_ref import check_bank
from ftd.kernels.expert_ffn_triton import expert_ffn_into
from ftd.kernels.expert_slots import ExpertSlots
from ftd.kernels.expert_split import POINTS, Split, search, tabulate
from ftd.kernels.expert_workspace import Workspace

# Layers of one measurement, of one token and of more: experts must come from memory and not from a cache
LAYERS, LAYERS_OF_MORE = 6, 2
REPEATS = 3
# What the interpreter measures means nothing; it takes its time for every launch
_INTERPRETED = {1: (1, 2)}
_HOT = 1 << 50


def measure(pool: ExpertSlots, num_chosen: int) -> Split:
    """Measure ``pool`` and return how to split misses; nothing else may use it. Takes a few seconds."""
    config = pool.config
    is_card = pool.device != "cpu"
    state = pool.state.saved()
    owners = pool.state.owner_of[pool.state.owner_of >= 0]
    pool.state.score.zero_()
    pool.state.score[owners.long()] = _HOT
    layers = _Layers(pool, num_chosen)
    points = POINTS if is_card else _INTERPRETED
    missing = min(layers.num_missing, config.num_experts)
    points = {
        tokens: tuple(misses for misses in counts if misses <= min(missing, tokens * num_chosen))
        for tokens, counts in points.items()
        if pool.takes(tokens)
    }
    points = {tokens: counts for tokens, counts in points.items() if counts}
    try:
        split = search(layers.seconds, points, config.num_experts)
    finally:
        pool.state.restore(state)
    if pool.prompts is None:
        return split
    return tabulate([*split.points, *expert_prompt_rates.measure(pool, num_chosen)], config.num_experts)


class _Layers:
    """Layers of steps whose misses are forced; one graph for each number of tokens."""

    def __init__(self, pool: ExpertSlots, num_chosen: int) -> None:
        assert pool.mailbox is not None and pool.first_bank is not None
        self._pool, self._num_chosen = pool, num_chosen
        self._precision = "f32" if pool.mailbox.x.dtype == torch.float32 else "fast"
        self._sizes = check_bank(pool.first_bank, "silu")
        self._bank = pool.by_slot(0, pool.matrices(pool.first_bank))
        self._workspaces: dict[int, Workspace] = {}
        slot_of = pool.state.slot_of.view(pool.config.num_layers, -1).cpu()
        self._missing = [
            (slot_of[row] < 0).nonzero().flatten() for row in range(min(LAYERS, pool.config.num_layers))
        ]
        self.num_missing = min(len(each) for each in self._missing)
        self._random = torch.Generator().manual_seed(0)
        self._ids: dict[int, torch.Tensor] = {}
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._inputs: dict[int, tuple[torch.Tensor, ...]] = {}

    def seconds(self, tokens: int, misses: int, fetched: int) -> float:
        """Return the seconds of a layer that misses ``misses`` experts and fetches ``fetched`` of them."""
        pool = self._pool
        if tokens not in self._ids:
            self._prepare(tokens)
        pool.state.set_quota([fetched] * (pool.config.num_experts + 1))
        best = float("inf")
        for turn in range(1 + REPEATS):
            self._ids[tokens].copy_(self._choose(tokens, misses))
            took = self._run(tokens)
            best = min(best, took) if turn or pool.device == "cpu" else best
            if pool.device == "cpu":
                break
        pool.check()
        return best / len(self._ids[tokens])

    def _prepare(self, tokens: int) -> None:
        pool, shape = self._pool, (tokens, self._num_chosen)
        assert pool.mailbox is not None
        box = pool.mailbox
        layers = min(len(self._missing), LAYERS if tokens == 1 else LAYERS_OF_MORE)
        self._ids[tokens] = torch.full((layers, *shape), -1, dtype=torch.int32, device=pool.device)
        x = torch.full((tokens, box.x.shape[1]), 0.5, dtype=box.x.dtype, device=pool.device)
        out = torch.zeros((tokens, box.x.shape[1]), dtype=torch.float32, device=pool.device)
        self._inputs[tokens] = x, torch.full(shape, 0.1, device=pool.device), out
        self._workspaces[tokens] = Workspace.make(
            *shape, pool.config.num_experts, *self._sizes, self._precision, pool.device
        )
        if pool.device == "cpu":
            return
        self._launch(tokens)  # compiles
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._launch(tokens)
        self._graphs[tokens] = graph

    def _launch(self, tokens: int) -> None:
        x, weights, out = self._inputs[tokens]
        for row, ids in enumerate(self._ids[tokens]):
            placement = self._pool.place(row, x, ids, weights)
            self._pool.join()
            fetched = DeviceBank(row, self._bank.matrices, placement.slot_of)
            expert_ffn_into(
                x,
                placement.fills,
                weights,
                fetched,
                precision=self._precision,
                out=out,
                add=True,
                workspace=self._workspaces[tokens],
            )
            self._pool.collect(row, out, placement, 1.0)
        self._pool.settle()

    def _run(self, tokens: int) -> float:
        """Return the seconds of one run."""
        if self._pool.device == "cpu":
            begin_s = time.perf_counter()
            self._launch(tokens)
            return time.perf_counter() - begin_s
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        self._graphs[tokens].replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    def _choose(self, tokens: int, misses: int) -> torch.Tensor:
        """Return ids [layers, T, K] of ``misses`` missing experts; each serves as many tokens as experts do.

        Others each time: read again they come from a cache, and one of q4_0 takes 44 us and not 56 (300 MB of
        it beside an H200). -1 stands where a token chose an expert that is there.
        """
        experts = self._pool.config.num_experts
        unique = experts * (1 - (1 - self._num_chosen / experts) ** tokens)
        pairs = tokens * self._num_chosen
        each = max(1, min(tokens, round(pairs / unique), pairs // misses))
        layers = len(self._ids[tokens])
        ids = torch.full((layers, pairs), -1, dtype=torch.int32)
        for row, missing in enumerate(self._missing[:layers]):
            order = missing[torch.randperm(len(missing), generator=self._random)][:misses]
            # Column by column, so that a token never has an expert twice
            ids[row, : misses * each] = order.repeat_interleave(each).to(torch.int32)
        return ids.view(layers, self._num_chosen, tokens).transpose(1, 2).contiguous()
