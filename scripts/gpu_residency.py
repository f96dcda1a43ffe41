"""Checks and times what decides where experts run: routing, residency, fetching, the processor's mailbox."""
# What loops make is launched before they go on.
# ruff: noqa: B023

import itertools
import multiprocessing
import time
from multiprocessing.synchronize import Event
from typing import Any

import numpy as np
import torch
from gpu_timing import DEVICE, D, E, F, K, Row, expert_inputs, graph_us


def bench_routing() -> list[Row]:
    """Check and time route_topk."""
    from ftd.kernels import route_topk_ref
    from ftd.kernels.route_topk_triton import route_topk, route_topk_into

    rows = []
    grouped = {"num_chosen": 8, "scoring": "sigmoid", "num_groups": 8, "top_groups": 4, "scale": 2.5}
    kinds: tuple[dict[str, Any], ...] = ({"num_chosen": 8}, grouped)
    for tokens, options in itertools.product((1, 16, 2048), kinds):
        experts = 256 if "num_groups" in options else 128
        logits = torch.randn(tokens, experts, device=DEVICE)
        ids, weights = route_topk(logits, **options)
        wanted_ids, wanted = route_topk_ref.route_topk(logits.cpu().numpy(), **options)
        np.testing.assert_array_equal(ids.cpu().numpy(), wanted_ids)
        np.testing.assert_allclose(weights.cpu().numpy(), wanted, rtol=2e-6)
        action = [lambda: route_topk_into(logits, **options, ids=ids, weights=weights)] * 16
        rows.append(Row(op="route_topk", case=f"{tokens} x {experts}", us=graph_us(action)))
    return rows


def bench_residency() -> list[Row]:
    """Time an access that only hits, and ones with misses, in pools of different sizes."""
    from ftd.kernels.residency_state import Placement, Residency
    from ftd.kernels.residency_triton import access, advance

    rows = []
    for (tokens, missing), slots in itertools.product(
        ((1, 0), (1, 1), (1, 3), (8, 0), (8, 3), (64, 0), (64, 60)), (2048, 8192)
    ):
        state = Residency.make(48 * E, slots, [0, 0, 1, 1, 2], [1 << 16] * 32, DEVICE)
        placement = Placement.make(tokens, K, E, DEVICE)
        _, ids, _ = expert_inputs(tokens)
        state.owner_of.copy_(torch.arange(slots) % (48 * E))
        state.slot_of[: min(slots, 48 * E)] = torch.arange(
            min(slots, 48 * E), dtype=torch.int32, device=DEVICE
        )
        gone = ids.unique()[:missing].long()
        state.slot_of[gone] = -1
        # Misses are never filled (quota 0, nothing beats a score), so that each access sees the same.
        state.score.fill_(1 << 40)
        state.score[gone] = 0
        state.quota.zero_()
        action = [lambda: access(state, ids, 0, placement)] * 16
        rows.append(
            Row(op="residency", case=f"{tokens} tokens {slots} slots {missing} misses", us=graph_us(action))
        )
    rows.append(Row(op="residency", case="advance", us=graph_us([lambda: advance(state, 24)] * 16)))
    return rows


def bench_fill() -> list[Row]:
    """Check and time the gather from pinned memory."""
    from ftd.kernels.fill_triton import DEEP, fill

    record = 3 * D * F * 2
    bank = torch.empty((E, record), dtype=torch.uint8, pin_memory=True)
    bank.view(torch.int64).random_()
    bases = torch.tensor([bank.data_ptr()], dtype=torch.int64, device=DEVICE)
    slots = torch.zeros((16, record), dtype=torch.uint8, device=DEVICE)
    rows = []
    for records, programs in itertools.product((1, 3), (4, 8, 16, 32)):
        table = torch.stack([torch.randperm(E)[:records], torch.arange(records)], 1).to(torch.int32)
        wanted = bank[table[:, 0].long()]
        table, count = table.to(DEVICE), torch.tensor([records], dtype=torch.int32, device=DEVICE)
        fill(table, count, bases, slots, E, record, (programs, DEEP[1]))
        assert torch.equal(slots[:records].cpu(), wanted)
        us = graph_us([lambda: fill(table, count, bases, slots, E, record, (programs, DEEP[1]))] * 12)
        rate = records * record / us / 1e3
        rows.append(
            Row(op="fill", case=f"{records} records {programs} programs", us=us, rate=rate, unit="GB/s")
        )
    return rows


def answer_forever(memory: torch.Tensor, tokens: int, ready: Event) -> None:
    """Be the worker of a mailbox in shared memory: set ``ready``, then answer at once."""
    from ftd.kernels.expert_mailbox_triton import BELL, DONE, Mailbox

    words = Mailbox.place(memory, tokens, K, D, torch.bfloat16, "cpu", clear=False).words.numpy()
    seen = 0
    ready.set()
    while True:
        number = int(words[BELL])
        if number != seen:
            seen = number
            words[DONE] = number


def bench_mailbox() -> list[Row]:
    """Time sending and collecting with a process that answers at once, and the wait for a silent one."""
    from ftd.kernels.expert_mailbox_triton import POISON, Mailbox, collect, looks_in
    from ftd.kernels.residency_state import Message, Placement, Residency
    from ftd.kernels.residency_triton import access

    size = Mailbox.num_bytes(16, K, D, torch.bfloat16)
    memory = torch.zeros(-(-size // 4096) * 4096 + 4096, dtype=torch.uint8).share_memory_()
    runtime = torch.cuda.cudart()
    assert int(runtime.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)) == 0
    mailbox = Mailbox.place(memory, 16, K, D, torch.bfloat16, DEVICE)
    looks = looks_in(mailbox, 1.5)
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    worker = context.Process(target=answer_forever, args=(memory, 16, ready), daemon=True)
    worker.start()
    ready.wait()
    rows = []
    for tokens in (1, 8):
        x, ids, weights = expert_inputs(tokens)
        out = torch.zeros(tokens, D, device=DEVICE)
        state, placement = Residency.make(E, 0, [0], [1], DEVICE), Placement.make(tokens, K, E, DEVICE)

        def both() -> None:
            access(state, ids, 0, placement, num_transient=E, message=Message(mailbox, x, weights, 3))
            collect(mailbox, out, placement.counts[2:], max_looks=looks)

        rows.append(Row(op="mailbox", case=f"{tokens} tokens there and back", us=graph_us([both] * 16)))
        assert int(mailbox.words[POISON]) == 0
    worker.kill()
    worker.join()
    begin = time.monotonic()
    both()
    torch.cuda.synchronize()
    rows.append(Row(op="mailbox", case="a silent worker is given up", us=1e6 * (time.monotonic() - begin)))
    assert int(mailbox.words[POISON]) > 0
    return rows
