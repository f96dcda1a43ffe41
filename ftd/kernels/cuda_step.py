"""The arrays of one step on a GPU: one buffer whose addresses never change, so that captured graphs read it.

    host (pinned) ──one copy──▶ device  ids · positions · kv_index · starts · lengths · states · rows · pages

A step is padded to the rows of the graph that runs it. Padding is inert: rows with kv index -1 store nothing
and choose no experts, sequences of length 0 see no keys.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from ftd.kernels.attention_triton import prefill_blocks
from ftd.kernels.step import Limits, Step

# Sections start at multiples of this many int32: 64 bytes.
_SECTION = 16


@dataclass(frozen=True, slots=True, eq=False)
class DeviceStep:
    """Views of one step's device arrays, padding included, and what launches must know on the host.

    num_decode: how many sequences come first with one token each. blocks: the query blocks [n, 2] i32 of the
    others, by their size in tokens; empty where there are none.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    kv_index: torch.Tensor
    q_start: torch.Tensor
    kv_len: torch.Tensor
    state_index: torch.Tensor
    page_table: torch.Tensor
    logit_rows: torch.Tensor
    num_decode: int
    blocks: dict[int, torch.Tensor]

    @property
    def num_tokens(self) -> int:
        """T: rows of token buffers."""
        return int(self.ids.shape[0])

    @property
    def num_logits(self) -> int:
        """Rows of logit buffers."""
        return int(self.logit_rows.shape[0])


class StepMemory:
    """Owns the arrays of any step within ``limits`` on ``device``. One thread at a time."""

    def __init__(self, limits: Limits, device: str) -> None:
        self._device = device
        self._offsets, start = _sections(limits)
        self._columns = limits.max_pages_per_sequence
        # Two: the copy of one step may be under way while the next one is written
        self._stagings = [torch.zeros(start, dtype=torch.int32, pin_memory=device != "cpu") for _ in range(2)]
        self._next_staging()
        self._array = torch.zeros(start, dtype=torch.int32, device=device)
        self.num_bytes = 4 * start

    @staticmethod
    def count(limits: Limits) -> int:
        """Return the bytes of the arrays on a device."""
        return 4 * _sections(limits)[1]

    def upload(
        self, step: Step, num_rows: int, block_sizes: Iterable[int], sampled: torch.Tensor | None = None
    ) -> DeviceStep:
        """Copy ``step``, padded to ``num_rows`` tokens and sequences if that is not 0; return its views.

        The step before the last one must have ended. block_sizes: of the query blocks. sampled [T] i32: ids
        that are on the device already.
        """
        self._next_staging()
        num_tokens, num_sequences = len(step.ids), len(step.kv_len)
        for name in ("ids", "positions", "kv_index", "q_start", "kv_len", "state_index", "logit_rows"):
            values = getattr(step, name)
            if values is None:
                continue
            section = self._section(name)
            section[: len(values)] = values
            if num_rows:
                fill = -1 if name == "kv_index" else num_tokens if name == "q_start" else 0
                section[len(values) : num_rows + (name == "q_start")] = fill
        used = step.page_table.shape[1]
        table = self._section("page_table").reshape(-1, self._columns)
        table[:num_sequences, :used] = step.page_table
        self._array.copy_(self._staging, non_blocking=True)
        if sampled is not None:
            self._tensor("ids")[:num_tokens].copy_(sampled)
        if num_rows:
            return self.views(num_rows, num_rows, num_rows, num_rows, {})
        counts = np.diff(step.q_start)
        others = np.flatnonzero(counts != 1)
        num_decode = int(others[0]) if len(others) else num_sequences
        blocks = {}
        if num_decode < num_sequences:
            for size in block_sizes:
                blocks[size] = torch.from_numpy(prefill_blocks(step.q_start, size, num_decode)).to(
                    self._device
                )
        return self.views(num_tokens, num_sequences, len(step.logit_rows), num_decode, blocks)

    def idle(self, num_rows: int) -> DeviceStep:
        """Return the views of a decode step of ``num_rows`` rows that are all padding."""
        for name in ("ids", "positions", "q_start", "kv_len", "state_index", "logit_rows"):
            self._section(name)[:] = 0
        self._section("kv_index")[:] = -1
        self._array.copy_(self._staging)
        return self.views(num_rows, num_rows, num_rows, num_rows, {})

    def views(
        self,
        num_tokens: int,
        num_sequences: int,
        num_logits: int,
        num_decode: int,
        blocks: dict[int, torch.Tensor],
    ) -> DeviceStep:
        """Return the views of a step of these sizes."""
        table = self._tensor("page_table").view(-1, self._columns)
        return DeviceStep(
            self._tensor("ids")[:num_tokens],
            self._tensor("positions")[:num_tokens],
            self._tensor("kv_index")[:num_tokens],
            self._tensor("q_start")[: num_sequences + 1],
            self._tensor("kv_len")[:num_sequences],
            self._tensor("state_index")[:num_sequences],
            table[:num_sequences],
            self._tensor("logit_rows")[:num_logits],
            num_decode,
            blocks,
        )

    def _next_staging(self) -> None:
        self._stagings.reverse()
        self._staging = self._stagings[0]
        self._host = self._staging.numpy()

    def _section(self, name: str) -> np.ndarray:
        start, end = self._offsets[name]
        return self._host[start:end]

    def _tensor(self, name: str) -> torch.Tensor:
        start, end = self._offsets[name]
        return self._array[start:end]


def _sections(limits: Limits) -> tuple[dict[str, tuple[int, int]], int]:
    """Return where each array begins and ends, in int32, and the length of all."""
    offsets = {}
    start = 0
    for name, length in (
        ("ids", limits.max_tokens),
        ("positions", limits.max_tokens),
        ("kv_index", limits.max_tokens),
        ("q_start", limits.max_sequences + 1),
        ("kv_len", limits.max_sequences),
        ("state_index", limits.max_sequences),
        ("logit_rows", limits.max_logits),
        ("page_table", limits.max_sequences * limits.max_pages_per_sequence),
    ):
        offsets[name] = (start, start + length)
        start += -(-length // _SECTION) * _SECTION
    return offsets, start
