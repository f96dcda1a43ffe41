"""Times what the processor takes for its part of a long step, while layers are staged as in such a step."""

import time

import numpy as np
import torch

from ftd.kernels.expert_slots import ExpertSlots
from ftd.kernels.expert_split import PROMPT_POINTS, Point

# The first turns touch memory that nobody has used
TURNS, WARM_TURNS = 4, 2
# Where an expert takes so many times as long as its copy, more experts or tokens are not tried: they could
# take longer than the card waits
HOPELESS = 4


def measure(pool: ExpertSlots, num_chosen: int) -> list[Point]:
    """Return a point for each of PROMPT_POINTS that fits; nothing else may use ``pool``. Takes a second."""
    prompts = pool.prompts
    assert prompts is not None
    counted = pool.stages.num_staged, prompts.num_shared
    pool.share_prompts(None)
    copy_s = min(_staging_s(pool) for _ in range(2))
    missing = min(int((row < 0).sum()) for row in pool.state.slot_of.view(prompts.ours.shape).cpu())
    found: list[Point] = []
    for tokens, counts in PROMPT_POINTS.items():
        for count in counts:
            is_hopeless = found and found[-1].run_seconds > HOPELESS * found[-1].fetch_seconds
            if is_hopeless or tokens > len(prompts.mailbox.many) or count > missing:
                continue
            run_s, fetch_s = max(_run_s(pool, num_chosen, tokens, count), 1e-9), max(count * copy_s, 1e-9)
            found.append(
                Point(
                    tokens=tokens,
                    misses=count,
                    fetched=0,
                    seconds=run_s,
                    fetch_seconds=fetch_s,
                    run_seconds=run_s,
                )
            )
    prompts.use(np.zeros_like(prompts.ours))
    pool.check()
    pool.stages.num_staged, prompts.num_shared = counted
    return found


def _staging_s(pool: ExpertSlots) -> float:
    """Return the seconds of staging an expert."""
    before = pool.stages.num_staged
    _wait(pool)
    begin_s = time.perf_counter()
    pool.stages.begin(0)
    _wait(pool)
    return (time.perf_counter() - begin_s) / max(pool.stages.num_staged - before, 1)


def _run_s(pool: ExpertSlots, num_chosen: int, tokens: int, count: int) -> float:
    """Return the seconds of a layer of which the processor runs ``count`` experts, each of as many rows."""
    prompts = pool.prompts
    assert prompts is not None
    rows, experts = prompts.ours.shape
    generator = torch.Generator().manual_seed(tokens)
    ids = torch.rand((tokens, experts), generator=generator).argsort(1)[:, :num_chosen].to(torch.int32)
    ids = ids.contiguous().to(pool.device)
    weights = torch.full(ids.shape, 1 / num_chosen, device=pool.device)
    box = prompts.mailbox
    x = torch.full((tokens, box.x.shape[1]), 0.5, dtype=box.x.dtype, device=pool.device)
    out = torch.zeros(x.shape, device=pool.device)
    uses = torch.zeros(experts + 1, dtype=torch.int64, device=pool.device)
    best = float("inf")
    for turn in range(TURNS):
        ours, row = np.zeros_like(prompts.ours), turn % rows
        slot_of = pool.state.slot_of.view(ours.shape)[row].cpu().numpy()
        ours[row, np.flatnonzero(slot_of < 0)[:count]] = True
        prompts.use(ours)
        _wait(pool)
        pool.stages.begin_first()
        begin_s = time.perf_counter()
        prompts.send(row, x, ids, weights, uses)
        prompts.collect(row, out, 1.0)
        if pool.device != "cpu":
            torch.cuda.current_stream().synchronize()  # not the copies
        took_s = time.perf_counter() - begin_s
        best = min(best, took_s) if turn >= WARM_TURNS else best
    _wait(pool)
    return best


def _wait(pool: ExpertSlots) -> None:
    if pool.device != "cpu":
        torch.cuda.synchronize()
