"""Recorded routing: the experts that tokens chose, as a file, and what cache policies make of it.

    FILE.npz    routing [L, T, K] u8 or u16   experts of each token in each layer with experts, best first
                tokens  [T] u16 or u32        the tokens that chose them

A replay counts expert uses: experts of a layer and step, each once however many tokens of the batch chose it.
Of a trained model of 8 layers and 32 experts (2,048 tokens, 37 % in slots) LRU misses 26.1 % of the uses, the
decayed score 20.8 %, Belady's bound is 11.0 %. The score changes residency with 15 % of the uses; a half-life
of 32 steps would miss 19.2 % and change with 4.4 %, but miss half as much again where topics change.
"""

import heapq
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ftd.engine.expert_cache import HALF_LIFE_STEPS, Counters, ExpertCache, Policy
from ftd.errors import InvalidOption

MAX_TRACE_BYTES = 1 << 30
MAX_LAYERS, MAX_EXPERTS, MAX_CHOSEN = 1 << 12, 1 << 16, 1 << 10
CAPACITIES = (0.11, 0.25, 0.37, 0.50)
NEVER = 1 << 62

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Trace:
    """Recorded routing of one text.

    routing  [L, T, K]   experts of a layer's own numbering
    tokens   [T]
    """

    routing: Ints
    tokens: Ints
    num_experts: int

    @property
    def num_tokens(self) -> int:
        """T."""
        return int(self.routing.shape[1])

    @property
    def all_experts(self) -> int:
        """Experts of all layers, L·E."""
        return int(self.routing.shape[0]) * self.num_experts

    def head(self, num_tokens: int) -> "Trace":
        """Return the trace of the first tokens."""
        return Trace(self.routing[:, :num_tokens], self.tokens[:num_tokens], self.num_experts)

    def steps(self, batch: int = 1) -> Iterator[list[Ints]]:
        """Yield for each step the flat ids that each layer uses, unique and ascending.

        A batch is as many equally long parts of the text, decoded side by side.
        """
        layers, tokens, chosen = self.routing.shape
        if not 1 <= batch <= tokens:
            raise InvalidOption(f"batch is not between 1 and the {tokens} tokens of the trace: {batch}")
        length = tokens // batch
        parts = self.routing[:, : length * batch].reshape(layers, batch, length, chosen)
        flat = parts + (np.arange(layers, dtype=np.int64) * self.num_experts)[:, None, None, None]
        for step in range(length):
            yield [np.unique(flat[layer, :, step]) for layer in range(layers)]


def read_trace(path: Path, num_experts: int | None = None) -> Trace:
    """Return the trace in a file; InvalidOption if it is none.

    num_experts: of a layer; None takes one more than the largest that occurs.
    """
    try:
        if path.stat().st_size > MAX_TRACE_BYTES:
            raise InvalidOption(f"trace is larger than {MAX_TRACE_BYTES} bytes: {path.stat().st_size}")
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
        if unpacked > MAX_TRACE_BYTES:
            raise InvalidOption(f"trace unpacks to more than {MAX_TRACE_BYTES} bytes: {unpacked}")
        with np.load(path, allow_pickle=False) as arrays:
            routing, tokens = arrays["routing"], arrays["tokens"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as exc:
        raise InvalidOption(f"cannot read a routing trace from {path}: {exc}"[:300]) from exc
    if routing.ndim != 3 or routing.dtype.kind != "u" or tokens.dtype.kind != "u" or 0 in routing.shape:
        raise InvalidOption(
            f"trace is not routing [L, T, K] and tokens [T] of unsigned integers: "
            f"{routing.dtype} {list(routing.shape)}, {tokens.dtype} {list(tokens.shape)}"
        )
    layers, length, chosen = routing.shape
    if tokens.shape != (length,) or layers > MAX_LAYERS or chosen > MAX_CHOSEN:
        raise InvalidOption(f"trace has impossible shapes: {list(routing.shape)} and {list(tokens.shape)}")
    found = int(routing.max()) + 1
    if found > min(num_experts or MAX_EXPERTS, MAX_EXPERTS):
        raise InvalidOption(f"trace has expert {found - 1} of {num_experts or MAX_EXPERTS}")
    return Trace(routing.astype(np.int64), tokens.astype(np.int64), num_experts or found)


def write_trace(path: Path, trace: Trace) -> None:
    """Write ``trace`` to ``path``, whole or not at all."""
    narrow = np.uint8 if trace.num_experts <= 1 << 8 else np.uint16
    small = np.uint16 if int(trace.tokens.max(initial=0)) < 1 << 16 else np.uint32
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("wb") as file:
            np.savez_compressed(file, routing=trace.routing.astype(narrow), tokens=trace.tokens.astype(small))
        partial.replace(path)
    except OSError as exc:
        raise InvalidOption(f"cannot write the trace: {exc.strerror}: {path}") from exc
    finally:
        partial.unlink(missing_ok=True)


def replay(
    trace: Trace,
    num_slots: int,
    policy: Policy = "decayed",
    *,
    half_life_steps: int = HALF_LIFE_STEPS,
    batch: int = 1,
) -> Counters:
    """Return what a cold cache of ``num_slots``, which fetches every miss, counts on the whole trace."""
    cache = ExpertCache(trace.all_experts, num_slots, policy, trace.num_experts, half_life_steps)
    for layers in trace.steps(batch):
        for ids in layers:
            cache.access(ids, quota=trace.num_experts)
        cache.advance()
    return cache.counters


def belady_misses(uses: Sequence[int] | Ints, num_slots: int, bypass: bool = True, begin: int = 0) -> int:
    """Return the fewest misses that ``num_slots`` can have on ``uses``, which are known in advance.

    bypass: a miss may run without taking a slot, as transient fills and CPU experts do; without it every miss
    takes one (Belady's own setting). begin: misses before this place are not counted. Time O(n log n).
    """
    order = [int(use) for use in uses]
    following = [NEVER] * len(order)
    last: dict[int, int] = {}
    for place in range(len(order) - 1, -1, -1):
        following[place] = last.get(order[place], NEVER)
        last[order[place]] = place
    resident: dict[int, int] = {}  # id -> its next use
    farthest: list[tuple[int, int]] = []  # (-next use, id); stale where resident says otherwise
    misses = 0
    for place, expert in enumerate(order):
        if expert not in resident:
            misses += place >= begin
            if num_slots == 0:
                continue
            if len(resident) == num_slots:
                while resident.get(farthest[0][1]) != -farthest[0][0]:
                    heapq.heappop(farthest)
                if bypass and -farthest[0][0] <= following[place]:
                    continue
                del resident[heapq.heappop(farthest)[1]]
        resident[expert] = following[place]
        heapq.heappush(farthest, (-following[place], expert))
    return misses


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityReport:
    """Miss rates (and fills per use) of the policies at one number of slots; ``belady`` is the bound."""

    capacity: float
    num_slots: int
    lru: float
    decayed: float
    decayed_fills: float
    belady: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingReport:
    """A trace and what policies make of it. Unions are experts used by a layer in a step."""

    layers: int
    experts: int
    chosen: int
    tokens: int
    batch: int
    half_life_steps: int
    uses: int
    union_mean: float
    union_max: int
    experts_used: int
    hottest_share: float
    capacities: list[CapacityReport]


def report(
    trace: Trace,
    capacities: Sequence[float] = CAPACITIES,
    batch: int = 1,
    half_life_steps: int = HALF_LIFE_STEPS,
) -> RoutingReport:
    """Replay a trace under every policy at these capacities: fractions of all experts, or slots from 1 on.

    hottest_share: uses of the most used tenth of the experts, as a share of all.
    """
    accesses = [ids for layers in trace.steps(batch) for ids in layers]
    uses = np.concatenate(accesses)
    counts = np.sort(np.bincount(uses, minlength=trace.all_experts))[::-1]
    rows = []
    for capacity in capacities:
        num_slots = int(capacity * trace.all_experts) if capacity < 1 else int(capacity)
        if not 0 <= num_slots <= trace.all_experts:
            raise InvalidOption(f"slots are not between 0 and {trace.all_experts}: {num_slots}")
        lru, decayed = (
            replay(trace, num_slots, policy, batch=batch, half_life_steps=half_life_steps)
            for policy in ("lru", "decayed")
        )
        rows.append(
            CapacityReport(
                capacity=num_slots / trace.all_experts,
                num_slots=num_slots,
                lru=lru.miss_rate,
                decayed=decayed.miss_rate,
                decayed_fills=(decayed.fills + decayed.warm_fills) / decayed.uses,
                belady=belady_misses(uses, num_slots) / len(uses),
            )
        )
    return RoutingReport(
        layers=trace.routing.shape[0],
        experts=trace.num_experts,
        chosen=trace.routing.shape[2],
        tokens=trace.num_tokens,
        batch=batch,
        half_life_steps=half_life_steps,
        uses=len(uses),
        union_mean=len(uses) / len(accesses),
        union_max=max(len(ids) for ids in accesses),
        experts_used=int(np.count_nonzero(counts)),
        hottest_share=float(counts[: max(len(counts) // 10, 1)].sum() / counts.sum()),
        capacities=rows,
    )


def format_report(result: RoutingReport) -> str:
    """Return ``result`` for people."""
    lines = [
        f"{'trace':<16} {result.tokens} tokens, {result.layers} layers of {result.experts} experts, "
        f"{result.chosen} a token",
        f"{'unions':<16} {result.union_mean:.2f} experts a layer and step on average, {result.union_max} at "
        f"most, batch {result.batch}",
        f"{'experts used':<16} {result.experts_used} of {result.layers * result.experts}; the hottest tenth "
        f"has {result.hottest_share:.0%} of {result.uses} uses",
        "",
        f"{'slots':>8} {'capacity':>9} {'lru':>7} {'decayed':>9} {'fills/use':>10} {'belady':>8}",
    ]
    lines += [
        f"{row.num_slots:>8} {row.capacity:>9.1%} {row.lru:>7.3f} {row.decayed:>9.3f} "
        f"{row.decayed_fills:>10.3f} {row.belady:>8.3f}"
        for row in result.capacities
    ]
    lines.append("miss rates: share of expert uses that find no slot, from a cold cache")
    return "\n".join(lines)
