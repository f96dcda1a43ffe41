"""The part of a long step's missing experts that the processor runs while the others are staged.

    routed ─┬─ divide: whose is it? ──▶ staged and resident ones compute ──┬─ + what the processor sent ─▶
            └─ x to the mailbox by the copy engine, ring ──▶ worker ───────┘

Which experts of a layer these are is chosen before the step begins, so that they are not staged: the coldest
that are in no slot, as many as ``PromptTimes`` says. The message is that of decode, of more rows; its answer
is of x's dtype. With 30b-a3b in bf16, 8 layers, 37 % of the experts in slots, H200 and 15 cores with AMX, the
processor runs 36 of 81 missing experts a layer of a prompt of 256 tokens (115 to 68 ms), 18 of 1,024 tokens
(115 to 93), 8 of 4,096 (118 to 114).
"""
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

from collections.abc import Callable

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from ftd.kernels.expert_mailbox_triton import Mailbox, collect_many, ring
from ftd.kernels.shapes import ceil_div, expect
from ftd.kernels.side_stream import beside

PAIRS_PER_PROGRAM = 1024

# How many of so many missing experts of a layer the processor runs in a step of so many tokens
Share = Callable[[int, int], int]


@triton.jit
def _divide(
    # pointers; to_* are addresses
    ids, weights, is_ours, here, uses, to_on_cpu, to_weights,
    # sizes
    num_pairs,
    # meta
    BLOCK: tl.constexpr,
):  # fmt: skip
    """here = the pairs that the card computes, the mailbox gets the others, counted; -1 elsewhere."""
    pair = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = pair < num_pairs
    expert = tl.load(ids + pair, mask=inside, other=-1)
    ours = (expert >= 0) & (tl.load(is_ours + expert, mask=expert >= 0, other=0) != 0)
    tl.store(here + pair, tl.where(ours, -1, expert), mask=inside)
    tl.store(to_on_cpu.to(tl.pointer_type(tl.int32)) + pair, tl.where(ours, expert, -1), mask=inside)
    tl.atomic_add(uses + expert, 1, mask=ours, sem="relaxed")
    weight = tl.load(weights + pair, mask=inside)
    tl.store(to_weights.to(tl.pointer_type(tl.float32)) + pair, weight, mask=inside)


class PromptShare:
    """What the processor runs of steps of more tokens than are placed, up to ``mailbox.many``'s rows.

    One layer is under way at a time. share_of: None while it runs nothing; ours [L, E]: what it runs of the
    step. max_looks: as ``collect`` takes them.
    """

    def __init__(self, mailbox: Mailbox, num_layers: int, num_experts: int, max_looks: int) -> None:
        self.mailbox = mailbox
        device = mailbox.sent.device
        self._max_looks = max_looks
        self.share_of: Share | None = None
        self.ours = np.zeros((num_layers, num_experts), bool)
        self._is_ours = torch.zeros((num_layers, num_experts), dtype=torch.int8, device=device)
        self._here = torch.empty(mailbox.on_cpu.shape, dtype=torch.int32, device=device)
        self._stream = torch.cuda.Stream() if device.type == "cuda" else None
        self.num_shared = 0

    def choose(self, num_tokens: int, held: NDArray[np.int32], score: NDArray[np.int64]) -> None:
        """Choose the experts of a step: held [L*E] slots, negative where missing; score [L*E]."""
        ours, shape = np.zeros_like(self.ours), self.ours.shape
        if self.share_of is not None and num_tokens <= len(self.mailbox.many):
            for row, slots, scores in zip(ours, held.reshape(shape), score.reshape(shape), strict=True):
                missing = np.flatnonzero(slots < 0)
                coldest = missing[np.argsort(scores[missing], kind="stable")]
                row[coldest[: self.share_of(num_tokens, len(missing))]] = True
        self.use(ours)

    def use(self, ours: NDArray[np.bool_]) -> None:
        """Let the processor run ``ours`` [L, E] of the steps to come. Waits for the device."""
        self.ours = ours
        self._is_ours.copy_(torch.from_numpy(ours.astype(np.int8)))

    def send(
        self, row: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, uses: torch.Tensor
    ) -> torch.Tensor:
        """Ask the processor for its experts of a layer; return ``ids`` [T, K], -1 where it computes.

        uses [E + 1] i64: adds how many tokens each of them serves.
        """
        count = int(self.ours[row].sum())
        if count == 0:
            return ids
        box, tokens = self.mailbox, len(ids)
        expect("x", x, str(box.x.dtype).removeprefix("torch."), (tokens, box.x.shape[1]))
        here = self._here[:tokens]
        expect("weights", weights, "float32", here.shape)
        _divide[(ceil_div(ids.numel(), PAIRS_PER_PROGRAM),)](
            ids, weights, self._is_ours[row], here, uses, box.on_cpu.data_ptr(), box.weights.data_ptr(),
            ids.numel(), BLOCK=PAIRS_PER_PROGRAM,
        )  # fmt: skip
        with beside(self._stream):
            box.x[:tokens].copy_(x, non_blocking=True)
            ring(box, tokens, row)
        self.num_shared += count
        return here

    def collect(self, row: int, out: torch.Tensor, scale: float) -> None:
        """Add scale * what the processor computed of a layer to ``out`` [T, D], if it was asked."""
        if not self.ours[row].any():
            return
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)
        collect_many(self.mailbox, out, scale, self._max_looks)
