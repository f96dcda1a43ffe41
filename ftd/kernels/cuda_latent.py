"""The ops of attention over latents in a recorded GPU program, and how they are recorded."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from ftd.kernels import latent_norm_ref
from ftd.kernels.attention_triton import Spread
from ftd.kernels.cuda_memory import DeviceMemory
from ftd.kernels.cuda_program import DeviceBuffer, Op, heads_of
from ftd.kernels.cuda_step import DeviceStep
from ftd.kernels.device_matrix import DeviceMatrix
from ftd.kernels.head_linear_triton import head_linear_into, unpacked
from ftd.kernels.index_select_triton import SEGMENT, index_select_into, words
from ftd.kernels.latent_attention_triton import (
    MAX_LATENT,
    LatentWorkspace,
    latent_attention_decode,
    latent_attention_prefill,
    latent_workspace,
    spread,
)
from ftd.kernels.latent_norm_triton import latent_norm_into
from ftd.kernels.latent_store_ref import check_pages
from ftd.kernels.latent_store_triton import latent_store
from ftd.kernels.quant import QuantMatrix
from ftd.kernels.reference_latent import HeadRows, head_shape
from ftd.kernels.rope_triton import rope_into
from ftd.kernels.shapes import expect_range
from ftd.kernels.step import Limits

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class DeviceSelection:
    """The keys that an indexer chose, a bit each: [max_tokens, W] i64 on the device."""

    bits: torch.Tensor


@dataclass(eq=False)
class HeadLinear(Op):
    """out = each head of x times a matrix of its own, and the head's tail."""

    READS, WRITES = ("x",), ("out",)
    out: DeviceBuffer
    x: DeviceBuffer
    weight: torch.Tensor
    tail: int
    interleaved: bool

    def run(self, step: DeviceStep) -> None:
        head_linear_into(self.x.rows(step), self.weight, self.tail, self.interleaved, out=self.out.rows(step))


@dataclass(eq=False)
class LatentNorm(Op):
    """out = the latent of x normalised, and the key that rotates."""

    READS, WRITES = ("x",), ("out",)
    out: DeviceBuffer
    x: DeviceBuffer
    weight: torch.Tensor
    eps: float
    interleaved: bool

    def run(self, step: DeviceStep) -> None:
        latent_norm_into(self.x.rows(step), self.weight, self.eps, self.interleaved, out=self.out.rows(step))


@dataclass(eq=False)
class RotateTail(Op):
    """Rotate the channels from ``first`` on of each head of x."""

    READS, WRITES = ("x",), ("x",)
    x: DeviceBuffer
    num_heads: int
    inv_freq: torch.Tensor
    scale: float
    first: int

    def run(self, step: DeviceStep) -> None:
        tail = heads_of(self.x.rows(step), self.x.width // self.num_heads)[:, :, self.first :]
        rope_into(tail, step.positions, self.inv_freq, self.scale, out=tail)


@dataclass(eq=False)
class LatentStore(Op):
    """Write each token's latent and key to its kv index."""

    READS, WRITES = ("x",), ()
    x: DeviceBuffer
    pages: torch.Tensor

    def run(self, step: DeviceStep) -> None:
        latent_store(self.x.rows(step), self.pages, step.kv_index)


@dataclass(eq=False)
class LatentAttention(Op):
    """Causal attention of each token over the latents of its sequence, or over those that are selected."""

    READS, WRITES = ("q",), ("out",)
    out: DeviceBuffer
    q: DeviceBuffer
    pages: torch.Tensor
    num_heads: int
    latent: int
    scale: float
    selection: DeviceSelection | None
    workspace: LatentWorkspace

    def run(self, step: DeviceStep) -> None:
        q, out, num = self.q.rows(step), self.out.rows(step), step.num_decode
        selected = None if self.selection is None else self.selection.bits[: step.num_tokens]
        shape = (self.num_heads, self.latent, self.scale)
        if num:
            latent_attention_decode(
                q[:num],
                self.pages,
                step.page_table[:num],
                step.decode_len,
                *shape,
                None if selected is None else selected[:num],
                out=out[:num],
                workspace=self.workspace,
            )
        if step.blocks:
            blocks = step.blocks[spread(self.num_heads, self.pages)]
            latent_attention_prefill(
                q,
                self.pages,
                step.page_table,
                step.q_start,
                step.positions,
                blocks.rows,
                *shape,
                selected,
                out=out,
                parts=self.workspace.parts if blocks.is_shared else None,
            )


@dataclass(eq=False)
class IndexSelect(Op):
    """selection = the best keys of each token by an indexer's queries."""

    # Bits, not sums: what q and weights lose decides which keys are seen
    READS, WRITES, EXACT = ("q", "weights"), (), ("q", "weights")
    q: DeviceBuffer
    weights: DeviceBuffer
    pages: torch.Tensor
    count: int
    selection: DeviceSelection
    scores: torch.Tensor

    def run(self, step: DeviceStep) -> None:
        index_select_into(
            self.q.rows(step),
            self.weights.rows(step),
            self.pages,
            step.page_table,
            step.q_start,
            step.kv_len,
            step.positions,
            self.count,
            out=self.selection.bits[: step.num_tokens],
            scores=self.scores,
        )


class LatentOps:
    """The part of CudaGraph that records attention over latents: pages hold one row a token."""

    _limits: Limits
    _memory: DeviceMemory
    _record: Callable[[Op], None]
    _precision: str
    _spreads: set[Spread]
    _num_pages: int
    _latent_workspaces: dict[tuple[int, int], LatentWorkspace]
    _index_scores: torch.Tensor | None

    def head_linear(
        self, out: DeviceBuffer, x: DeviceBuffer, num_heads: int, weight: QuantMatrix, which: HeadRows
    ) -> None:
        """Record out = each head of ``x`` times its own rows of ``weight``, and the head's tail."""
        used, _, wide = head_shape(cast(Any, x), num_heads, weight, which)
        if out is x or out.width != num_heads * wide:
            raise ValueError(f"out must be another buffer {num_heads * wide} wide, got {out.width}")
        dtype = torch.float32 if self._precision == "f32" else torch.bfloat16
        device, deep = self._memory.device, weight.shape[1]

        def unpack() -> torch.Tensor:
            if device == "meta":  # only sizes are asked for
                sizes = (num_heads, deep, used) if which.transposed else (num_heads, used, deep)
                return torch.empty(sizes, dtype=dtype, device=device)
            whole = DeviceMatrix.upload([weight], device)
            return unpacked(whole, num_heads, which.first, used, which.transposed, dtype)

        parts = self._memory.allocate(unpack)
        self._memory.buffer_bytes += parts.numel() * parts.element_size()
        self._record(HeadLinear(out, x, parts, which.tail, which.interleaved))

    def latent_norm(
        self, out: DeviceBuffer, x: DeviceBuffer, weight: Floats, eps: float, interleaved: bool = False
    ) -> None:
        """Record out = the first channels of ``x`` normalised, and the others."""
        latent_norm_ref.check(np.empty((0, x.width), np.float32), weight, eps, interleaved)
        if out is x or out.width != x.width:
            raise ValueError(f"out must be another buffer {x.width} wide, got {out.width}")
        self._record(LatentNorm(out, x, self._memory.vector(weight), eps, interleaved))

    def latent_store(self, x: DeviceBuffer, pages: torch.Tensor) -> None:
        """Record the step's latents going to their pages."""
        self._expect_latents(pages)
        if x.width != pages.shape[2]:
            raise ValueError(f"x must be {pages.shape[2]} wide, got {x.width}")
        self._record(LatentStore(x, pages))

    def latent_attention(
        self,
        out: DeviceBuffer,
        q: DeviceBuffer,
        pages: torch.Tensor,
        num_heads: int,
        latent: int,
        scale: float,
        selection: DeviceSelection | None = None,
    ) -> None:
        """Record out = latent_attention(q, pages) with the step's sequences, over what is selected."""
        self._expect_latents(pages)
        expect_range("latent", latent, latent, 1, min(int(pages.shape[2]), MAX_LATENT))
        if (q.width, out.width) != (num_heads * pages.shape[2], num_heads * latent):
            raise ValueError(f"q and out must be {num_heads} heads wide, got {q.width} and {out.width}")
        self._spreads.add(spread(num_heads, pages))
        workspace = self._latent_workspace(num_heads, latent)
        self._record(LatentAttention(out, q, pages, num_heads, latent, scale, selection, workspace))

    def index_select(
        self,
        q: DeviceBuffer,
        weights: DeviceBuffer,
        pages: torch.Tensor,
        count: int,
        selection: DeviceSelection | None = None,
    ) -> DeviceSelection:
        """Record the choice of each token's ``count`` best keys; return the handle for latent_attention.

        selection: one that is not needed any more, whose memory is taken.
        """
        self._expect_latents(pages)
        if q.width != weights.width * pages.shape[2]:
            raise ValueError(f"q must be {weights.width * pages.shape[2]} wide, got {q.width}")
        expect_range("count", count, count, 1, 1 << 30)
        limits, device = self._limits, self._memory.device
        keys = limits.max_pages_per_sequence * limits.page_size
        if self._index_scores is None:
            rows = min(SEGMENT, limits.max_tokens)
            self._index_scores = self._memory.allocate(lambda: torch.zeros((rows, keys), device=device))
            self._memory.buffer_bytes += 4 * self._index_scores.numel()
        if selection is None:
            shape = (limits.max_tokens, words(keys))
            selection = DeviceSelection(
                self._memory.allocate(lambda: torch.zeros(shape, dtype=torch.int64, device=device))
            )
            self._memory.buffer_bytes += 8 * selection.bits.numel()
        self._record(IndexSelect(q, weights, pages, count, selection, self._index_scores))
        return selection

    def _latent_workspace(self, num_heads: int, latent: int) -> LatentWorkspace:
        """Return the memory that splits of a decode attention share; layers of one shape use the same."""
        key, limits, device = (num_heads, latent), self._limits, self._memory.device
        if key not in self._latent_workspaces:
            keys = limits.max_pages_per_sequence * limits.page_size
            made = self._memory.allocate(
                lambda: latent_workspace(limits.max_sequences, num_heads, latent, keys, device)
            )
            self._latent_workspaces[key] = made
            self._memory.buffer_bytes += made.num_bytes
        return self._latent_workspaces[key]

    def _expect_latents(self, pages: torch.Tensor) -> None:
        check_pages(pages, "C")
        if pages.shape[1] != self._limits.page_size:
            raise ValueError(f"pages must hold {self._limits.page_size} tokens, got {pages.shape[1]}")
        self._num_pages = min(self._num_pages, int(pages.shape[0]))
