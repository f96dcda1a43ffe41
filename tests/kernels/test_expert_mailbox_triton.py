"""The mailbox with a thread as the worker: what it gets, what the card adds, workers that fail or stall."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from ftd.kernels.expert_mailbox_triton import (
    BELL,
    DONE,
    FAILED,
    LAYER,
    POISON,
    TOKENS,
    Mailbox,
    collect,
    collect_many,
    looks_in,
    ring,
)
from ftd.kernels.residency_state import Message, Placement, Residency
from ftd.kernels.residency_triton import access

T, K, D, E, LAYERS = 3, 4, 80, 12, 8


def make(device: str, most: int = 0) -> Mailbox:
    """Return a mailbox in pinned memory."""
    return Mailbox.allocate(T, K, D, torch.float32, device, most=most)


@contextmanager
def worker(mailbox: Mailbox, answer: Callable[[int], int]) -> Iterator[list[tuple[int, int, int]]]:
    """Run a worker that doubles x and answers what ``answer`` makes of the number; yield what it received."""
    received: list[tuple[int, int, int]] = []
    stop = threading.Event()
    words = mailbox.words.numpy()

    def serve() -> None:
        seen = 0
        while not stop.wait(0.0001):  # lets the interpreter run
            number = int(words[BELL])
            if number == seen:
                continue
            seen = number
            received.append((number, int(words[TOKENS]), int(words[LAYER])))
            mailbox.many.copy_(2 * mailbox.x)
            words[DONE] = answer(number)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield received
    finally:
        stop.set()
        thread.join()


def inputs(device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return x, ids and weights; some choices are of nobody."""
    x = torch.randn(T, D + 7, device=device)[:, 2 : D + 2]
    ids = torch.arange(T * K, dtype=torch.int32, device=device).view(T, K) - 5
    return x, ids, torch.rand(T, K, device=device)


def deliver(
    mailbox: Mailbox, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, layer: int
) -> torch.Tensor:
    """Let the CPU run all of ``ids``: no slot has any of them; return how many those are."""
    device = str(ids.device.type)
    state = Residency.make(LAYERS * E, 0, (0, 0), [1], device)
    placement = Placement.make(*ids.shape, E, device)
    access(state, ids, layer * E, placement, num_transient=E, message=Message(mailbox, x, weights, layer))
    return placement.counts[2:3]


def test_workers_see_the_message_and_their_answer_is_added(device: str) -> None:
    mailbox = make(device)
    x, ids, weights = inputs(device)
    out = torch.ones((T, D), device=device)
    with worker(mailbox, lambda number: number) as received:
        for layer in (4, 7):
            collect(mailbox, out, deliver(mailbox, x, ids, weights, layer), 0.5)
        out = out.cpu()
    assert received == [(1, T, 4), (2, T, 7)]
    torch.testing.assert_close(mailbox.x, x.cpu())
    assert torch.equal(mailbox.on_cpu, ids.cpu().clamp(min=-1)) and torch.equal(
        mailbox.weights, weights.cpu()
    )
    torch.testing.assert_close(out, 1 + 2 * x.cpu())
    assert mailbox.words[POISON] == 0


def test_nothing_is_sent_if_nothing_runs_on_the_cpu(device: str) -> None:
    mailbox = make(device)
    x, ids, weights = inputs(device)
    out = torch.ones((T, D), device=device)
    count = deliver(mailbox, x, torch.full_like(ids, -1), weights, 0)
    collect(mailbox, out, count, max_looks=1)
    assert out.cpu().eq(1).all() and not mailbox.words.any()


def test_fewer_tokens_than_the_mailbox_holds(device: str) -> None:
    mailbox = make(device)
    x, ids, weights = inputs(device)
    out = torch.zeros((2, D), device=device)
    with worker(mailbox, lambda number: number) as received:
        collect(mailbox, out, deliver(mailbox, x[:2], ids[:2], weights[:2], 0))
        out = out.cpu()
    assert received == [(1, 2, 0)]
    torch.testing.assert_close(out, 2 * x[:2].cpu())


def test_a_message_of_many_tokens(device: str) -> None:
    mailbox = make(device, 45)
    out = torch.ones((37, D), device=device)
    mailbox.x.copy_(torch.randn(mailbox.x.shape))
    with worker(mailbox, lambda number: number) as received:
        for layer in (4, 7):
            ring(mailbox, len(out), layer)
            collect_many(mailbox, out, 0.5)
        out = out.cpu()
    assert received == [(1, 37, 4), (2, 37, 7)]
    torch.testing.assert_close(out, 1 + 2 * mailbox.x[:37])
    assert mailbox.words[POISON] == 0


def test_a_message_of_many_tokens_that_nobody_answers(device: str) -> None:
    mailbox = make(device, 45)
    out = torch.ones((45, D), device=device)
    ring(mailbox, 45, 0)
    for _ in range(2):
        collect_many(mailbox, out, 1.0, max_looks=50)
    assert out.cpu().eq(1).all() and mailbox.words[POISON] == 1


@pytest.mark.parametrize("answer", [FAILED, 0])
def test_a_worker_that_fails_or_stalls_poisons_the_mailbox(device: str, answer: int) -> None:
    mailbox = make(device)
    x, ids, weights = inputs(device)
    out = torch.ones((T, D), device=device)
    with worker(mailbox, lambda _: answer):
        for _ in range(2):  # the second wait ends at once
            collect(mailbox, out, deliver(mailbox, x, ids, weights, 0), max_looks=50)
        out = out.cpu()
    assert mailbox.words[POISON] == 1
    assert out.eq(1).all()


def test_a_wait_is_counted_in_looks(device: str) -> None:
    mailbox = make(device)
    short, long = looks_in(mailbox, 0.001), looks_in(mailbox, 0.1)
    assert 0 < short <= long
    assert not mailbox.words.any() and not mailbox.sent.any()


def test_refuses_what_does_not_fit(device: str) -> None:
    mailbox = make(device)
    x, ids, weights = inputs(device)
    with pytest.raises(ValueError, match=r"x must be float32 \[3, 80\]"):
        deliver(mailbox, x[:, :64], ids, weights, 0)
    with pytest.raises(ValueError, match=r"weights must be float32 \[3, 4\]"):
        deliver(mailbox, x, ids[:, :2], weights[:, :2], 0)
    with pytest.raises(ValueError, match="tokens must lie in 1 to 3, got 6"):
        deliver(mailbox, x.repeat(2, 1), ids.repeat(2, 1), weights.repeat(2, 1), 0)
    with pytest.raises(ValueError, match="does not fit 64 bytes"):
        Mailbox.place(torch.zeros(64, dtype=torch.uint8), T, K, D, torch.float32, device)
