"""Slots for experts on a card that holds fewer of them than the model has; the banks stay in host memory.

    slots   [R + 2E, S] u8     R resident, of all layers │ 2E staged: nothing in them outlives a step (E where
                               memory is short)

A decode step asks ``residency_triton`` where each routed expert is. Of the missing ones some are fetched by a
kernel that reads pinned host memory, others run on the processor in place, while the experts that are there
compute; ``quota`` says how many are fetched. One that is not hot enough to stay is fetched to a staged slot;
one that runs on the processor and is hot enough is fetched beside the step, for the next time.

A prefill of many tokens stages layers (``expert_stages``).

Where the system refuses to lock host memory, no kernel can read it: the processor runs all that is in no
slot, and prompts still stage layers.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from ftd.errors import EngineError, OutOfMemory
from ftd.kernels._expert_worker_cy import ExpertWorker
from ftd.kernels._pool import Pool
from ftd.kernels.device_matrix import DeviceBank, DeviceMatrix
from ftd.kernels.expert_ahead import ExpertsAhead
from ftd.kernels.expert_mailbox_triton import MAX_LOOKS, POISON, Mailbox, collect, looks_in
from ftd.kernels.expert_places import PoolConfig, first_owners, runs
from ftd.kernels.expert_prompts import PromptShare, Share
from ftd.kernels.expert_stages import StagedLayers
from ftd.kernels.fill_triton import DEEP, SHALLOW, Depth, fill
from ftd.kernels.host_lock import HostLocks, needs_locks
from ftd.kernels.quant import BankMatrix, ExpertBank
from ftd.kernels.residency_state import COUNTERS, Message, Placement, Quota, Residency
from ftd.kernels.residency_triton import MAX_PAIRS, access, advance
from ftd.kernels.side_stream import beside, wait_for

# How long the card waits for the workers: with the step's own time an error is there within 2 s.
WORKER_WAIT_S = 1.5


@dataclass(frozen=True, slots=True)
class Kept:
    """What a pool leaves to the one that takes its place: locked banks, and how hot each expert is."""

    locks: HostLocks
    score: torch.Tensor
    clock: torch.Tensor


class ExpertSlots:
    """Owns slots and residency on ``device`` and pins the banks that it is given. One thread at a time.

    kept: of a pool of the same banks; the hottest experts are in slots from the start.
    """

    def __init__(
        self, config: PoolConfig, max_rows: int, num_chosen: int, device: str, kept: Kept | None = None
    ) -> None:
        self.config = config
        self.device = device
        self._banks: list[torch.Tensor] = []
        self.first_bank: ExpertBank | None = None
        self._locks = HostLocks() if kept is None else kept.locks
        self.is_locked = True
        places = config.num_places
        self._slots = torch.empty((places, config.record_bytes), dtype=torch.uint8, device=device)
        self._bases = torch.zeros(config.num_layers, dtype=torch.int64, device=device)
        self._identity = torch.arange(places, dtype=torch.int32, device=device)
        total = config.num_layers * config.num_experts
        self.state = Residency.make(total, config.num_slots, config.quota, config.weights, device)
        self._owners = first_owners(config, None if kept is None else kept.score.cpu().numpy())
        if kept is not None:
            self.state.score.copy_(kept.score)
            self.state.clock.copy_(kept.clock)
        self._max_rows = min(max_rows, MAX_PAIRS // num_chosen)
        self._num_chosen = num_chosen
        # One for each size and layer: what is fetched beside a step is read while later layers are placed
        self._placements: dict[tuple[int, int], Placement] = {}
        overlaps = device != "cpu" and config.overlaps
        # What steps wait for, and what only later steps need
        self._copies, self._warm_copies = (torch.cuda.Stream() if overlaps else None for _ in range(2))
        self._fetched: torch.cuda.Event | None = None
        self._ahead = ExpertsAhead(config, device)
        self._arrived: torch.cuda.Event | None = None
        self.mailbox: Mailbox | None = None
        self._max_looks = MAX_LOOKS
        self._worker: ExpertWorker | None = None
        self.stages = StagedLayers(
            config, self._slots, self.state, self._banks, self._copies, self._placement
        )
        self.formats: set[str] = set()

    def use_processor(self, threads: Pool, width: int, precision: str, prompt_tokens: int = 0) -> None:
        """Let misses beyond the quota run on ``threads``, which nobody else may use; before ``add``.

        prompt_tokens: of the longest step that leaves it some of what would be staged, if ``share_prompts``
        says so.
        """
        dtype = torch.float32 if precision == "f32" else torch.bfloat16
        box = Mailbox.allocate(
            self._max_rows, self._num_chosen, width, dtype, self.device, most=prompt_tokens
        )
        self.mailbox = box
        self._max_looks = looks_in(box, WORKER_WAIT_S)
        parts = (box.words.numpy(), box.on_cpu.numpy(), box.weights.numpy())
        if precision == "f32":
            self._worker = ExpertWorker(threads, *parts, box.x.numpy(), box.many.numpy(), precision)
        else:
            x, many = (each.view(torch.uint16).numpy() for each in (box.x, box.many))
            self._worker = ExpertWorker(threads, *parts, x, box.out.numpy(), precision, many)
        if prompt_tokens > self._max_rows:
            config = self.config
            share = PromptShare(box, config.num_layers, config.num_experts, self._max_looks)
            self.stages.prompts = share

    def add(self, bank: ExpertBank, activation: str = "silu", limit: float = 7.0) -> int:
        """Pin ``bank``, fill its share of the slots and return its row; banks come in the order of layers."""
        row, config = len(self._banks), self.config
        if row == config.num_layers:
            raise ValueError(f"the pool is made for {config.num_layers} layers")
        if bank.records.shape != (config.num_experts, config.record_bytes):
            raise ValueError(f"records of layer {bank.layer} are {list(bank.records.shape)}")
        with warnings.catch_warnings():
            # Of memory that may not be written; nobody does
            warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
            records = torch.from_numpy(bank.records)
        if self.is_locked and needs_locks(self.device) and not self._locks.add(records):
            self._do_without_lock()
        self._banks.append(records)
        self.first_bank = self.first_bank or bank
        self.formats |= {matrix.format for matrix in bank.matrices.values() if isinstance(matrix, BankMatrix)}
        if self._worker is not None:
            self._worker.add(bank, activation, limit)
        self._bases[row] = records.data_ptr()
        self._fill_row(row, records)
        return row

    def matrices(self, bank: ExpertBank) -> dict[str, DeviceMatrix]:
        """Return the weights of ``bank`` in every slot, by role."""
        found = {}
        for role, matrix in bank.matrices.items():
            assert isinstance(matrix, BankMatrix)
            found[role] = DeviceMatrix.in_slots(self._slots, matrix.format, matrix.shape, matrix.offsets)
        return found

    def by_slot(self, layer: int, matrices: Mapping[str, DeviceMatrix]) -> DeviceBank:
        """Return the bank whose expert ids are slots."""
        return DeviceBank(layer, matrices, self._identity)

    def resident_bank(self, row: int, layer: int, matrices: Mapping[str, DeviceMatrix]) -> DeviceBank:
        """Return the layer's bank, of which the experts can be read that are in slots."""
        config = self.config
        slot_of = self.state.slot_of[row * config.num_experts :][: config.num_experts]
        return DeviceBank(layer, matrices, slot_of)

    def takes(self, num_tokens: int) -> bool:
        """Return whether a step of so many tokens is placed expert by expert, rather than by whole layers."""
        return num_tokens <= self._max_rows

    def advance(self) -> None:
        """Begin a step."""
        advance(self.state, self.config.epoch_half_lives)

    def start(self) -> None:
        """Begin to answer the card; all banks are there."""
        if self._worker is not None:
            self._worker.start()

    @property
    def prompts(self) -> PromptShare | None:
        """The processor's part of long steps, if it may have one."""
        return self.stages.prompts

    @property
    def looks_ahead(self) -> bool:
        """Whether layers are looked ahead to; known when all banks are there."""
        return self.config.looks_ahead and self.is_locked and self.config.num_slots > 0

    def place(
        self,
        row: int,
        x: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        expected: torch.Tensor | None = None,
    ) -> Placement:
        """Decide where the experts ``ids`` [T, K] of a layer run; begin to fetch and to run on the processor.

        x [T, D] and weights [T, K] are what the processor needs of the step. expected [T, K]: what the next
        layer is expected to choose, if it is to be looked ahead to.
        """
        config, tokens, ahead = self.config, ids.shape[0], self._ahead
        placement = self._placement(tokens, row)
        message = None if self.mailbox is None else Message(self.mailbox, x, weights, row)
        was_expected = ahead.expects(row)
        self._arrived = ahead.copied if was_expected else None
        access(
            self.state, ids, row * config.num_experts, placement, config.policy, config.num_staged,
            message=message, warms=not was_expected,
        )  # fmt: skip
        with beside(self._copies):
            self._fill(placement.fetch, placement.counts[0:1])
            self._fetched = None if self._copies is None else self._copies.record_event()
            ahead.choose(self.state, row + 1, expected, placement)
        # Not before the next layer's fetches: no slot that is filled here is a victim in this step
        with beside(self._warm_copies):
            wait_for(self._fetched)
            ahead.copy(self._bases, self._slots)
            if self.mailbox is not None and not was_expected:
                self._fill(placement.warm, placement.counts[1:2], SHALLOW)
        return placement

    def join(self) -> None:
        """Let the current stream wait for the copies that the layer needs which was placed last."""
        wait_for(self._fetched)
        wait_for(self._arrived)

    def collect(self, row: int, out: torch.Tensor, placement: Placement, scale: float) -> None:
        """Add scale * what the processor computed to ``out``; after the last layer nothing is under way."""
        if self.mailbox is not None:
            collect(self.mailbox, out, placement.counts[2:3], scale, self._max_looks)
        if row == self.config.num_layers - 1:
            self.settle()

    def settle(self) -> None:
        """Let the current stream wait for all copies."""
        for stream in (self._copies, self._warm_copies):
            if stream is not None:
                torch.cuda.current_stream().wait_stream(stream)

    def set_quota(self, quota: Quota, warm: Quota = (1,)) -> None:
        """Say how many of m misses are fetched and how many others beside the step; graphs follow.

        None where memory is not locked.
        """
        if self.is_locked:
            self.state.set_quota(quota, warm)
        else:
            self.state.set_quota([0] * (self.config.num_experts + 1), (0,))

    def set_ahead(self, misses: int) -> None:
        """Say how many misses a layer has at least, beside which one expert of the next is copied."""
        self._ahead.least.fill_(misses)

    def share_prompts(self, share: Share | None) -> None:
        """Say how many experts of long steps run on the processor; None: none do."""
        if self.prompts is not None:
            self.prompts.share_of = share if self.is_locked else None

    def fetch(self, rows: torch.Tensor, count: torch.Tensor) -> None:
        """Copy ``count`` [1] experts to slots, rows [N, 2] of flat id and slot; for measurements."""
        self._fill(rows, count)

    def check(self) -> None:
        """Raise EngineError if the processor failed to answer the card."""
        if self.mailbox is not None and int(self.mailbox.words[POISON]) != 0:
            raise EngineError(
                "the workers that run experts on the processor did not answer the card",
                "load the model again; if it happens again, use --experts fill",
            )

    def _fill(self, rows: torch.Tensor, count: torch.Tensor, depth: Depth = DEEP) -> None:
        config = self.config
        fill(rows, count, self._bases, self._slots, config.num_experts, config.record_bytes, depth)

    def counters(self) -> dict[str, int]:
        """Return what ``Residency`` counted, and experts ``staged`` and ``shared``. Waits for the device."""
        counted = dict(zip(COUNTERS, self.state.counters.tolist(), strict=True))
        shared = 0 if self.prompts is None else self.prompts.num_shared
        return counted | {"staged": self.stages.num_staged, "shared": shared}

    def quota_of_one(self) -> list[int]:
        """Return how many of m = 0, 1, … misses are fetched in steps of one token. Waits for the device."""
        quota: list[int] = self.state.quota[0, 0].tolist()
        return quota

    @property
    def worker_ns(self) -> int:
        """Nanoseconds that the processor has worked on experts."""
        return 0 if self._worker is None else self._worker.busy_ns

    @property
    def bank_bytes(self) -> int:
        """Bytes of all banks, in host memory."""
        return sum(bank.nbytes for bank in self._banks)

    @property
    def num_bytes(self) -> int:
        """Bytes of all slots."""
        return self._slots.nbytes

    @property
    def lock_refusal(self) -> str | None:
        """Why banks are not locked, if they are not."""
        return self._locks.refusal

    def leave(self) -> Kept:
        """End, and return what another pool of the same banks goes on with; nothing is under way."""
        if self._worker is not None:
            self._worker.close()
        locks, self._locks = self._locks, HostLocks()
        return Kept(locks, self.state.score, self.state.clock)

    def close(self) -> None:
        """End the worker and unlock the host memory."""
        if self._worker is not None:
            self._worker.close()
        self._locks.close()

    def _fill_row(self, row: int, records: torch.Tensor) -> None:
        """Copy the experts of a layer that are in slots from the start."""
        num_experts = self.config.num_experts
        first, end = np.searchsorted(self._owners, [row * num_experts, (row + 1) * num_experts]).tolist()
        owners = self._owners[first:end]
        for begin, stop in runs(owners):
            slots = self._slots[first + begin : first + stop]
            slots.copy_(records[owners[begin] - row * num_experts :][: stop - begin])
        flat = torch.from_numpy(owners).to(self.device)
        self.state.owner_of[first:end] = flat
        self.state.slot_of[flat.long()] = self._identity[first:end]

    def _placement(self, tokens: int, row: int) -> Placement:
        key = (tokens, row)
        if key not in self._placements:
            shape = (tokens, self._num_chosen, self.config.num_experts)
            self._placements[key] = Placement.make(*shape, self.device)
        return self._placements[key]

    def _do_without_lock(self) -> None:
        """Leave to the processor what is in no slot: only locked memory can be fetched from.

        Raises OutOfMemory if there is no worker.
        """
        self._locks.close()
        self.is_locked = False
        if self.mailbox is None:
            raise OutOfMemory(
                f"the system refused to lock experts in memory: {self._locks.refusal}",
                "raise the limit of locked memory (ulimit -l), or set FTD_EXPERTS=auto",
            )
        self.set_quota([0] * (self.config.num_experts + 1))
