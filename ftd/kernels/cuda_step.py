"""The arrays of one step on a GPU: one buffer whose addresses never change, so that captured graphs read it.

    host (pinned) ──one copy──▶ device  ids · positions · kv_index · starts · lengths · states · rows · pages
                                        · blocks of prompts

A step is padded to the sizes of the graph that runs it. Padding is inert: rows with kv index -1 store nothing
and choose no experts, sequences of length 0 see no keys, blocks of negative numbers are none.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from ftd.kernels.attention_triton import Spread, prefill_blocks
from ftd.kernels.step import Limits, Step

# Sections start at multiples of this many int32: 64 bytes.
_SECTION = 16


class Bucket(NamedTuple):
    """What a step is padded to. decode: each sequence has one token; else some may, which come first."""

    tokens: int
    sequences: int
    is_decode: bool

    @property
    def num_decode(self) -> int:
        """How many sequences may have one token; a prompt alone takes prefill's attention."""
        return self.sequences if self.is_decode or self.sequences > 1 else 0


class Blocks(NamedTuple):
    """Query blocks [n, 4] i32 of ``prefill_blocks``, and whether programs may share the keys of one."""

    rows: torch.Tensor
    is_shared: bool


@dataclass(frozen=True, slots=True, eq=False)
class DeviceStep:
    """Views of one step's device arrays, padding included, and what launches must know on the host.

    num_decode: how many sequences come first with one token each, or in a padded step may. decode_len: their
    lengths, 0 where one has more tokens. blocks: of the others; empty where there are none.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    kv_index: torch.Tensor
    q_start: torch.Tensor
    kv_len: torch.Tensor
    decode_len: torch.Tensor
    state_index: torch.Tensor
    page_table: torch.Tensor
    logit_rows: torch.Tensor
    num_decode: int
    blocks: dict[Spread, Blocks]

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

    def __init__(self, limits: Limits, spreads: Iterable[Spread], device: str) -> None:
        self._spreads = tuple(spreads)
        self._offsets, start = _sections(limits, self._spreads)
        self._columns = limits.max_pages_per_sequence
        # Two: the copy of one step may be under way while the next one is written
        self._stagings = [torch.zeros(start, dtype=torch.int32, pin_memory=device != "cpu") for _ in range(2)]
        self._copied = [torch.cuda.Event() if device != "cpu" else None for _ in range(2)]
        self._next_staging()
        self._array = torch.zeros(start, dtype=torch.int32, device=device)
        self.num_bytes = 4 * start

    @staticmethod
    def count(limits: Limits, spreads: Iterable[Spread]) -> int:
        """Return the bytes of the arrays on a device."""
        return 4 * _sections(limits, spreads)[1]

    def upload(self, step: Step, bucket: Bucket | None, sampled: torch.Tensor | None = None) -> DeviceStep:
        """Copy ``step``, padded to ``bucket`` if there is one; return its views.

        Waits until the step before the last one has begun. sampled [T] i32: ids that are on the device
        already.
        """
        self._next_staging()
        num_tokens, num_sequences = len(step.ids), len(step.kv_len)
        for name in ("ids", "positions", "kv_index", "q_start", "kv_len", "state_index", "logit_rows"):
            values = getattr(step, name)
            if values is None:
                continue
            section = self._section(name)
            section[: len(values)] = values
            if bucket is not None:
                fill = -1 if name == "kv_index" else num_tokens if name == "q_start" else 0
                is_by_token = name in ("ids", "positions", "kv_index")
                size = bucket.tokens if is_by_token else bucket.sequences + (name == "q_start")
                section[len(values) : size] = fill
        used = step.page_table.shape[1]
        table = self._section("page_table").reshape(-1, self._columns)
        table[:num_sequences, :used] = step.page_table
        others = np.flatnonzero(np.diff(step.q_start) != 1)
        num_decode = int(others[0]) if len(others) else num_sequences
        if bucket is not None:
            num_decode = min(num_decode, bucket.num_decode)
        section = self._section("decode_len")
        section[:num_decode] = step.kv_len[:num_decode]
        section[num_decode:] = 0
        if bucket is None:
            blocks = self._write_blocks(step, num_decode) if num_decode < num_sequences else {}
            device_step = self.views(num_tokens, num_sequences, len(step.logit_rows), num_decode, blocks)
        else:
            if not bucket.is_decode:
                self._write_blocks(step, num_decode)
            device_step = self.padded(bucket)
        self._array.copy_(self._staging, non_blocking=True)
        if self._copied[0] is not None:
            self._copied[0].record()
        if sampled is not None:
            self._tensor("ids")[:num_tokens].copy_(sampled)
        return device_step

    def idle(self, bucket: Bucket) -> DeviceStep:
        """Return the views of a step of ``bucket`` that are all padding."""
        for name in ("ids", "positions", "q_start", "kv_len", "decode_len", "state_index", "logit_rows"):
            self._section(name)[:] = 0
        self._section("kv_index")[:] = -1
        for spread in self._spreads:
            self._section(spread)[:] = -1
        self._array.copy_(self._staging)
        return self.padded(bucket)

    def padded(self, bucket: Bucket) -> DeviceStep:
        """Return the views of a step that is padded to ``bucket``."""
        tokens, sequences, is_decode = bucket
        if is_decode:
            return self.views(tokens, sequences, sequences, bucket.num_decode, {})
        blocks = {
            spread: Blocks(self._tensor(spread).view(-1, 4)[: spread.most(tokens, sequences)], True)
            for spread in self._spreads
        }
        return self.views(tokens, sequences, sequences, bucket.num_decode, blocks)

    def views(
        self,
        num_tokens: int,
        num_sequences: int,
        num_logits: int,
        num_decode: int,
        blocks: dict[Spread, Blocks],
    ) -> DeviceStep:
        """Return the views of a step of these sizes."""
        table = self._tensor("page_table").view(-1, self._columns)
        return DeviceStep(
            self._tensor("ids")[:num_tokens],
            self._tensor("positions")[:num_tokens],
            self._tensor("kv_index")[:num_tokens],
            self._tensor("q_start")[: num_sequences + 1],
            self._tensor("kv_len")[:num_sequences],
            self._tensor("decode_len")[:num_decode],
            self._tensor("state_index")[:num_sequences],
            table[:num_sequences],
            self._tensor("logit_rows")[:num_logits],
            num_decode,
            blocks,
        )

    def _write_blocks(self, step: Step, first_sequence: int) -> dict[Spread, Blocks]:
        """Write the blocks of the sequences from ``first_sequence`` on; return where they will be."""
        found = {}
        for spread in self._spreads:
            rows = prefill_blocks(step.q_start, step.kv_len, spread, first_sequence)
            section = self._section(spread).reshape(-1, 4)
            section[: len(rows)] = rows
            section[len(rows) :] = -1
            is_shared = bool((rows[:, 3] > 1).any())
            found[spread] = Blocks(self._tensor(spread).view(-1, 4)[: len(rows)], is_shared)
        return found

    def _next_staging(self) -> None:
        """Turn to the other memory, once what was last written there has gone to the card.

        Parts of a prompt have no results that anybody awaits, so steps queue up behind a busy card.
        """
        self._stagings.reverse()
        self._copied.reverse()
        if self._copied[0] is not None:
            self._copied[0].synchronize()
        self._staging = self._stagings[0]
        self._host = self._staging.numpy()

    def _section(self, name: str | Spread) -> np.ndarray:
        start, end = self._offsets[name]
        return self._host[start:end]

    def _tensor(self, name: str | Spread) -> torch.Tensor:
        start, end = self._offsets[name]
        return self._array[start:end]


def _sections(limits: Limits, spreads: Iterable[Spread]) -> tuple[dict[str | Spread, tuple[int, int]], int]:
    """Return where each array begins and ends, in int32, and the length of all."""
    lengths: dict[str | Spread, int] = {
        "ids": limits.max_tokens,
        "positions": limits.max_tokens,
        "kv_index": limits.max_tokens,
        "q_start": limits.max_sequences + 1,
        "kv_len": limits.max_sequences,
        "decode_len": limits.max_sequences,
        "state_index": limits.max_sequences,
        "logit_rows": limits.max_logits,
        "page_table": limits.max_sequences * limits.max_pages_per_sequence,
    }
    for spread in spreads:
        lengths[spread] = 4 * spread.most(limits.max_tokens, limits.max_sequences)
    offsets = {}
    start = 0
    for name, length in lengths.items():
        offsets[name] = (start, start + length)
        start += -(-length // _SECTION) * _SECTION
    return offsets, start
