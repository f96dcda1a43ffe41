"""Ceilings and rows of bench-experts.

What keeps decode below ``roof`` (30b-a3b, 37 % in slots, H200 and 15 cores: 62 to 69 % of it in bf16, 40 in
q4_0). Medians of a layer's microseconds by what it misses, from a trace of 47 steps, before what is copied
for later had a stream of its own:

    bf16                            layer   CPU answers   fetch done   beside it done
    nothing missed                     65
    1 on the CPU                      151           122                           217
    2 on the CPU                      221           191                           267
    1 fetched, 2 on the CPU           362                        290              483
    q4_0, all fills 16 x 1,024
    nothing missed                     48
    1 on the CPU                       71            50                            73
    1 fetched, 2 on the CPU           115                         76              136
    1 fetched, 4 on the CPU           140           118           80              144

Without misses a layer takes 30 us more than its bytes. An expert is fetched or run as a whole: 9.4 MB of bf16
take 186 us over PCIe or 97 us of 15 cores, where both together would bring them in 68. What is copied for
later is moved once more, 0.8 experts a layer beside 2.1 misses, and processor and PCIe share the memory:
they move 210 to 240 MB a token of 8 layers, three quarters of its time at the 135 GB/s that both reach.
Of q4_0 (2.7 MB: 52 us or 30) what is asked and answered counts: 17 us beside the expert's bytes.

Other quotas, one more or one less fetched, none beside what is fetched, and a high priority of copies all
decode within 4 % (half of all misses fetched: -18 % in bf16, -8 % in q4_0). To admit only experts that were
used twice loses more by misses than it saves by copies. A miss split by rows between both paths gains
nothing in bf16 and 4 % in q4_0 in an event model of slots, paths and policy; looking ahead 5 and 7 %, on
recorded routing 7 to 15 %. On the card looking ahead gained 9 % in both: 951 to 1,003 tokens/s against 871
to 919 in 12 layers of q4_0 (10.4 % missed, 16.1 without), 660 to 697 against 584 to 633 in 6 of bf16; beside
layers without misses too it changed nothing more, nor did deep copies beside the step (bf16: 610 to 634,
shallow 584 to 633).
"""

import json
import statistics
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from gpu_timing import median_us

from ftd.engine.locality import Locality
from ftd.engine.routing import belady_misses
from ftd.engine.synthetic import SHAPES
from ftd.kernels._bandwidth_cy import read_all
from ftd.kernels._pool import Pool
from ftd.kernels.expert_slots import ExpertSlots

READ_BYTES = 2 << 30
# Splits of a program's own choice; what each run of ftd adds to the one before it
SPLITS = ("", "auto", "layers")
ABLATION = {
    "serial": "no overlap",
    "paper": "LRU and q*",
    "lru": "LRU and measured split",
    "demand": "ours, not ahead",
    "ftd": "ours",
}


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """Bytes a second of a device copy (read and written) and, of one format's records, of each path."""

    copy: float
    h2d: float
    fetch: float = 0.0
    cpu: float = 0.0
    fetch_beside: float = 0.0
    cpu_beside: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement; zeros do not apply.

    rates: of each measurement that tokens_per_s is the median of, in their order. lru, belady: what LRU and a
    policy that knows the future miss of the same text with as many slots, routed by embeddings alone. moved,
    ran: bytes, copied and read by the CPU, of a token or of a whole prompt.
    """

    program: str
    model: str
    run: str
    split: str
    slots: float
    case: str
    tokens_per_s: float = 0.0
    rates: tuple[float, ...] = ()
    first_token_ms: float = 0.0
    missed: float = 0.0
    lru: float = 0.0
    belady: float = 0.0
    moved: float = 0.0
    ran: float = 0.0
    roof: float = 0.0
    note: str = ""


@dataclass
class Report:
    """Rows as they come, printed and written."""

    path: Path | None
    rows: list[Row] = field(default_factory=list)
    ceilings: dict[str, object] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        """Print a row and write all that is known."""
        self.rows.append(row)
        parts = [
            f"{row.program:<9} {row.model:<14} {row.run:<6} {row.split:<9} {row.slots:>5.1%} {row.case:<14}"
        ]
        parts += [f"{row.tokens_per_s:>9.1f} tok/s"] if row.tokens_per_s else []
        parts += [f"({min(row.rates):.1f} … {max(row.rates):.1f})"] if len(row.rates) > 1 else []
        parts += [f"{row.first_token_ms:>9.1f} ms"] if row.first_token_ms else []
        parts += [f"missed {row.missed:>6.1%}"] if row.missed else []
        parts += [f"(LRU {row.lru:.1%}, Belady {row.belady:.1%})"] if row.lru else []
        parts += (
            [f"copied {row.moved / 1e6:>7.1f} MB, run {row.ran / 1e6:>7.1f} MB"]
            if row.moved + row.ran
            else []
        )
        parts += [f"roof {row.roof:>5.1%}"] if row.roof else []
        print(" ".join((*parts, row.note)), flush=True)
        self.write()

    def write(self) -> None:
        """Write the file, if one is wanted."""
        if self.path is not None:
            found = {"ceilings": self.ceilings, "rows": [asdict(row) for row in self.rows]}
            found |= {"ratios": self.ratios(), "ablation": self.ablation(), "forced": self.forced()}
            self.path.write_text(json.dumps(found, indent=1))

    def best(self, model: str, slots: float, case: str) -> dict[str, float]:
        """Return the best speed of each program and, of ftd, of each run: tokens or first tokens a second."""
        found: dict[str, float] = {}
        for row in self.rows:
            if (row.model, round(row.slots, 2), row.case) != (model, slots, case) or row.split not in SPLITS:
                continue
            speed = row.tokens_per_s or 1e3 / row.first_token_ms
            name = f"ftd {row.run}" if row.program == "ftd" else row.program
            found[name] = max(found.get(name, 0.0), speed)
        return found

    def first_ms(self, model: str, run: str, case: str) -> float:
        """Return the time to the first token of one of ftd's runs, 0 where it was not measured."""
        found = [
            row
            for row in self.rows
            if (row.program, row.model, row.run, row.case) == ("ftd", model, run, case)
        ]
        return found[-1].first_token_ms if found else 0.0

    def cases(self) -> list[tuple[str, float, str]]:
        """Return model, slots and case of all rows, each once."""
        return list(dict.fromkeys((row.model, round(row.slots, 2), row.case) for row in self.rows))

    def ratios(self) -> list[dict[str, object]]:
        """Return how many times as fast as each other program ftd is, by model, slots and case."""
        found: list[dict[str, object]] = []
        for model, slots, case in self.cases():
            speeds = self.best(model, slots, case)
            ours = speeds.get("ftd ftd")
            others = {name: ours / speed for name, speed in speeds.items() if ours and "ftd" not in name}
            if others:
                found.append({"model": model, "slots": slots, "case": case, **others})
        return found

    def ablation(self) -> list[dict[str, object]]:
        """Return the speed of each step from the paper's system without overlap to ftd's."""
        found: list[dict[str, object]] = []
        for model, slots, case in self.cases():
            speeds = self.best(model, slots, case)
            its = {title: speeds[f"ftd {run}"] for run, title in ABLATION.items() if f"ftd {run}" in speeds}
            if len(its) > 1:
                found.append({"model": model, "slots": slots, "case": case, **its})
        return found

    def forced(self) -> list[dict[str, object]]:
        """Return how fast auto is beside the fastest forced split, by model, run, slots and case.

        The median of the ratios of measurements that were made next to each other.
        """
        groups: dict[tuple[str, str, float, str], dict[str, Row]] = {}
        for row in self.rows:
            if row.program == "ftd" and row.rates:
                key = (row.model, row.run, round(row.slots, 2), row.case)
                groups.setdefault(key, {})[row.split] = row
        found: list[dict[str, object]] = []
        for (model, run, slots, case), rows in groups.items():
            auto = rows.pop("auto", None)
            if auto is None or not rows:
                continue
            best = max(rows.values(), key=lambda row: row.tokens_per_s)
            ratio = statistics.median(a / b for a, b in zip(auto.rates, best.rates, strict=True))
            common = {"model": model, "run": run, "slots": slots, "case": case}
            found.append({**common, "best": best.split, "auto": ratio})
        return found

    def summary(self) -> None:
        """Print ratios, ablation, and what auto is worth."""
        for row in self.forced():
            print(
                f"# auto is {row['auto']:.3f} times as fast as {row['best']}, the best forced: "
                f"{row['model']} {row['run']} {row['slots']:.0%} {row['case']}",
                flush=True,
            )
        for title, rows in (("ftd is so many times as fast", self.ratios()), ("ablation", self.ablation())):
            for row in rows:
                values = {name: value for name, value in row.items() if isinstance(value, float)}
                values.pop("slots")
                parts = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
                print(f"# {title}: {row['model']} {row['slots']:.0%} {row['case']}: {parts}", flush=True)


def bounds(
    locality: Locality, shape: str, layers: int, slots: float, ids: list[int], begin: int
) -> tuple[float, float]:
    """Return the parts of expert uses of ``ids`` from ``begin`` on that LRU and Belady's rule miss.

    Routed by embeddings alone, in slots that were empty at first.
    """
    its = SHAPES[shape][1]
    experts, chosen = its["num_experts"], its["num_experts_per_tok"]
    routes = locality.routes(ids, layers, experts, chosen, its["hidden_size"])
    flat = routes + np.arange(layers)[:, None, None] * experts
    uses, first = flat.transpose(1, 0, 2).reshape(-1).tolist(), begin * layers * chosen
    num_slots = int(slots * layers * experts)
    missed = lru_misses(uses, num_slots, first), belady_misses(uses, num_slots, begin=first)
    lru, belady = (count / max(1, len(uses) - first) for count in missed)
    return lru, belady


def lru_misses(uses: list[int], num_slots: int, begin: int) -> int:
    """Return how many of ``uses`` from place ``begin`` on find no slot where the longest unused leaves."""
    held: OrderedDict[int, None] = OrderedDict()
    missed = 0
    for place, expert in enumerate(uses):
        missed += place >= begin and expert not in held
        held[expert] = None
        held.move_to_end(expert)
        if len(held) > num_slots:
            held.popitem(last=False)
    return missed


def seconds(action: Callable[[], object], repeats: int = 7) -> float:
    """Return the median seconds of ``action`` on the device."""
    return median_us(action, repeats) / 1e6


def wait() -> None:
    """Wait for the card."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def card_ceilings() -> Ceilings:
    """Measure the card; without one nothing that is said means anything."""
    if not torch.cuda.is_available():
        return Ceilings(copy=1e9, h2d=1e9)
    source = torch.empty(4 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copy = 2 * source.numel() / seconds(lambda: target.copy_(source))
    host = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    h2d = host.numel() / seconds(lambda: target[: 1 << 30].copy_(host, non_blocking=True))
    return Ceilings(copy=copy, h2d=h2d)


def with_paths(card: Ceilings, pool: ExpertSlots, num_threads: int) -> Ceilings:
    """Measure both paths of a pool, alone and at once, on memory that no cache holds."""
    data, config = np.ones(READ_BYTES // 8, np.uint64), pool.config
    count = min(config.num_experts, 16)
    number = torch.tensor([count], dtype=torch.int32, device=pool.device)
    pairs = torch.stack([torch.arange(count), torch.arange(count) + config.num_slots], dim=1)
    first = torch.tensor([[config.num_experts, 0]])
    rows = [(pairs + layer * first).to(torch.int32).to(pool.device) for layer in range(config.num_layers)]

    def fetch(times: int) -> None:
        for turn in range(times):
            pool.fetch(rows[turn % len(rows)], number)

    def read() -> float:
        return data.nbytes / statistics.median(read_all(data, threads)[1] for _ in range(3)) * 1e9

    size = count * config.record_bytes
    with Pool(num_threads) as threads:
        cpu, alone = read(), 0.0
        if pool.device == "cpu":
            return Ceilings(
                copy=card.copy, h2d=card.h2d, fetch=1e9, cpu=cpu, fetch_beside=1e9, cpu_beside=cpu
            )
        alone = len(rows) * size / seconds(lambda: fetch(len(rows)), 3)
        times = max(1, min(900, int(0.3 * alone / size)))
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        fetch(times)
        end.record()
        cpu_beside = read()
        end.synchronize()
        beside = times * size / (begin.elapsed_time(end) / 1e3)
    return Ceilings(
        copy=card.copy, h2d=card.h2d, fetch=alone, cpu=cpu, fetch_beside=beside, cpu_beside=cpu_beside
    )
