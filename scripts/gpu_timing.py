"""Times of kernels on a card, its ceilings, and the sizes and inputs that bench-gpu-experts measures with."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ftd.kernels import card_copy

DEVICE = "cuda"
LAYERS = 8
# Experts of the 30B-A3B shape
D, F, E, K = 2048, 768, 128, 8


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement; ``share`` is of the card's copy or product rate, 0 where neither bounds it."""

    op: str
    case: str
    us: float
    rate: float = 0.0
    unit: str = ""
    share: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """What the card can do: a copy, read and written, and a bf16 product."""

    copy_gb_per_s: float
    tflop_per_s: float


def median_us(action: Callable[[], object], repeats: int = 9) -> float:
    """Return the median microseconds of ``action`` on the device, after three."""
    times = []
    for _ in range(repeats + 3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        action()
        end.record()
        end.synchronize()
        times.append(1e3 * float(begin.elapsed_time(end)))
    return statistics.median(times[3:])


def graph_us(actions: Sequence[Callable[[], object]]) -> float:
    """Return the microseconds of one of ``actions``, captured one after the other; each runs before that."""
    for action in actions[:1]:
        action()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for action in actions:
            action()
    return median_us(graph.replay) / len(actions)


def measure_ceilings() -> Ceilings:
    """Measure the card."""
    copy = card_copy.device_rate() / 1e9
    left, right = (torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    return Ceilings(copy_gb_per_s=copy, tflop_per_s=2 * 8192**3 / median_us(lambda: left @ right) / 1e6)


def expert_inputs(tokens: int, experts: int = E) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return x, ids and weights of ``tokens``."""
    x = torch.randn(tokens, D, device=DEVICE, dtype=torch.bfloat16)
    ids = torch.rand(tokens, experts, device=DEVICE).topk(K)[1].to(torch.int32)
    return x, ids, torch.rand(tokens, K, device=DEVICE)
