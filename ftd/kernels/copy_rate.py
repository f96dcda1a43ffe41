"""How fast a card fetches experts from host memory when it does nothing else."""

import time
from statistics import median

import torch

from ftd.kernels.expert_slots import ExpertSlots

REPEATS = 5


def measure(pool: ExpertSlots) -> float:
    """Return bytes a second of fetching a layer's experts to staged slots; nothing else may use ``pool``."""
    config = pool.config
    count = min(config.num_experts, 16)
    number = torch.tensor([count], dtype=torch.int32, device=pool.device)
    rates = []
    for turn in range(REPEATS + 1):
        first = turn % config.num_layers * config.num_experts
        pairs = [(first + i, config.num_slots + i) for i in range(count)]
        rows = torch.tensor(pairs, dtype=torch.int32, device=pool.device)
        _wait(pool)
        begin_ns = time.perf_counter_ns()
        pool.fetch(rows, number)
        _wait(pool)
        rates.append(count * config.record_bytes / (time.perf_counter_ns() - begin_ns) * 1e9)
    return median(rates[1:])


def _wait(pool: ExpertSlots) -> None:
    if pool.device != "cpu":
        torch.cuda.synchronize()
