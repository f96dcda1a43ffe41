"""The ops of a recorded GPU program: what each reads and writes, and the kernels it launches.

Buffers are handles until ``CudaGraph.finish`` gives them memory. An op launches kernels on the current stream
and never waits for the device, so that a program can be captured.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import torch

from ftd.kernels.add_triton import add
from ftd.kernels.attention_token_triton import NewTokens
from ftd.kernels.attention_triton import (
    DecodeWorkspace,
    Spread,
    attention_decode,
    attention_prefill,
    spread,
)
from ftd.kernels.cuda_step import DeviceStep
from ftd.kernels.device_matrix import DeviceMatrix
from ftd.kernels.embedding_triton import embedding
from ftd.kernels.gated_matmul_triton import gated_matmul
from ftd.kernels.geglu_triton import geglu
from ftd.kernels.kv_store_triton import kv_store
from ftd.kernels.matmul_triton import matmul
from ftd.kernels.qkv_post_triton import qkv_post
from ftd.kernels.rms_norm_triton import rms_norm
from ftd.kernels.rope_triton import rope
from ftd.kernels.select_logit_rows_triton import select_logit_rows
from ftd.kernels.swiglu_triton import swiglu

# Steps of so many rows stream weights instead of multiplying tiles; the norm before a product is then free.
MAX_STREAMED_ROWS = 16


@dataclass(slots=True, eq=False)
class DeviceBuffer:
    """Handle of activations [rows, width]; ``tensor`` is given by the graph when recording has ended."""

    width: int
    kind: Literal["tokens", "logits"]
    tensor: torch.Tensor | None = None

    def rows(self, step: DeviceStep) -> torch.Tensor:
        """Return the rows of ``step``."""
        assert self.tensor is not None
        return self.tensor[: step.num_tokens if self.kind == "tokens" else step.num_logits]


class Op:
    """One entry of a program; the names of its fields that are read, written, and must be f32.

    What is updated in place is both read and written. f32: sums that grow over layers, and what decides
    between experts.
    """

    READS: ClassVar[tuple[str, ...]] = ()
    WRITES: ClassVar[tuple[str, ...]] = ()
    EXACT: ClassVar[tuple[str, ...]] = ()

    def run(self, step: DeviceStep) -> None:
        """Launch the op's kernels."""
        raise NotImplementedError

    def is_fixed(self, num_tokens: int) -> bool:
        """Return whether a prompt's launches depend on sizes alone, so that they can be captured."""
        return True

    def buffers(self, names: tuple[str, ...]) -> list[DeviceBuffer]:
        """Return the buffers in the fields ``names``."""
        found: list[DeviceBuffer] = []
        for name in names:
            value = getattr(self, name)
            found += value if isinstance(value, list) else [] if value is None else [value]
        return found


@dataclass(eq=False)
class Embed(Op):
    """out = scale * weight[ids]."""

    READS, WRITES, EXACT = (), ("out",), ("out",)
    out: DeviceBuffer
    weight: DeviceMatrix
    scale: float

    def run(self, step: DeviceStep) -> None:
        embedding(step.ids, self.weight, self.scale, out=self.out.rows(step))


@dataclass(eq=False)
class RmsNorm(Op):
    """out = norm(x) * weight over rows of ``channels`` (all of x, or each head)."""

    READS, WRITES = ("x",), ("out",)
    out: DeviceBuffer
    x: DeviceBuffer
    weight: torch.Tensor
    eps: float

    def run(self, step: DeviceStep) -> None:
        channels = self.weight.shape[0]
        x, out = self.x.rows(step), self.out.rows(step)
        if channels != self.x.width:
            # Heads of one row are no rows of a column view; q and k of one group are fused, see cuda_fusion
            x, out = (heads_of(each, channels) for each in (x, out))
        rms_norm(x, self.weight, self.eps, out=out)


@dataclass(eq=False)
class AddNorm(Op):
    """x += scale * y, then out = norm(x) * weight."""

    READS, WRITES, EXACT = ("x", "y"), ("x", "out"), ("x",)
    out: DeviceBuffer
    x: DeviceBuffer
    y: DeviceBuffer
    scale: float
    weight: torch.Tensor
    eps: float

    def run(self, step: DeviceStep) -> None:
        rms_norm(
            self.x.rows(step),
            self.weight,
            self.eps,
            out=self.out.rows(step),
            add=self.y.rows(step),
            add_scale=self.scale,
        )


@dataclass(eq=False)
class Add(Op):
    """out += scale * x."""

    READS, WRITES, EXACT = ("out", "x"), ("out",), ("out",)
    out: DeviceBuffer
    x: DeviceBuffer
    scale: float

    def run(self, step: DeviceStep) -> None:
        add(self.out.rows(step), self.x.rows(step), self.scale)


@dataclass(eq=False)
class Product(Op):
    """outs = x W^T + bias; several outs are neighbouring columns of one tensor. ``add``: outs += x W^T."""

    READS, WRITES = ("x", "added"), ("outs",)
    outs: list[DeviceBuffer]
    x: DeviceBuffer
    weight: DeviceMatrix
    bias: torch.Tensor | None
    precision: str
    add: bool = False
    norm: RmsNorm | None = None

    @property
    def added(self) -> list[DeviceBuffer]:
        """What the product is added to."""
        return self.outs if self.add else []

    def run(self, step: DeviceStep) -> None:
        out = joined([each.rows(step) for each in self.outs])
        x, norm = normalised(self.x, self.norm, step)
        matmul(x, self.weight, self.bias, self.precision, out=out, add=self.add, norm=norm)


@dataclass(eq=False)
class GatedProduct(Op):
    """out = act(x G^T) * (x U^T); weight holds the rows of G, then those of U."""

    READS, WRITES = ("x",), ("out",)
    out: DeviceBuffer
    x: DeviceBuffer
    weight: DeviceMatrix
    activation: Literal["silu", "gelu"]
    precision: str
    norm: RmsNorm | None = None

    def run(self, step: DeviceStep) -> None:
        x, norm = normalised(self.x, self.norm, step)
        gated_matmul(x, self.weight, self.activation, self.precision, out=self.out.rows(step), norm=norm)


@dataclass(eq=False)
class Gate(Op):
    """out = act(gate) * up, element by element."""

    READS, WRITES = ("gate", "up"), ("out",)
    out: DeviceBuffer
    gate: DeviceBuffer
    up: DeviceBuffer
    activation: Literal["silu", "gelu"]

    def run(self, step: DeviceStep) -> None:
        gated = swiglu if self.activation == "silu" else geglu
        gated(self.gate.rows(step), self.up.rows(step), out=self.out.rows(step))


@dataclass(eq=False)
class Rope(Op):
    """Rotate each head of x by its token's position."""

    READS, WRITES = ("x",), ("x",)
    x: DeviceBuffer
    num_heads: int
    inv_freq: torch.Tensor
    scale: float

    def run(self, step: DeviceStep) -> None:
        x = heads_of(self.x.rows(step), self.x.width // self.num_heads)
        rope(x, step.positions, self.inv_freq, self.scale, out=x)


@dataclass(eq=False)
class KvStore(Op):
    """Write K and V of each token to its kv index."""

    READS, WRITES = ("k", "v"), ()
    k: DeviceBuffer
    v: DeviceBuffer
    k_pages: torch.Tensor
    v_pages: torch.Tensor

    def run(self, step: DeviceStep) -> None:
        k, v = (heads_of(each.rows(step), self.k_pages.shape[2]) for each in (self.k, self.v))
        kv_store(k, v, self.k_pages, self.v_pages, step.kv_index)


@dataclass(eq=False)
class QkvPost(Op):
    """Norm the heads of q and k if asked, rotate them, and write K and V to their pages: one kernel."""

    READS, WRITES = ("q", "k", "v"), ("q",)
    q: DeviceBuffer
    k: DeviceBuffer
    v: DeviceBuffer
    rotation: Rope
    q_norm: RmsNorm | None
    k_norm: RmsNorm | None
    pages: KvStore

    def new_tokens(self, step: DeviceStep) -> NewTokens:
        """Return what attention takes to do the same itself."""
        q_norm, k_norm = self.q_norm, self.k_norm
        return NewTokens(
            self.k.rows(step),
            self.v.rows(step),
            step.kv_index,
            step.positions,
            self.rotation.inv_freq,
            self.rotation.scale,
            None if q_norm is None else q_norm.weight,
            None if k_norm is None else k_norm.weight,
            0.0 if q_norm is None else q_norm.eps,
        )

    def run(self, step: DeviceStep) -> None:
        new = self.new_tokens(step)
        qkv_post(
            self.q.rows(step),
            new.k,
            new.v,
            self.pages.k_pages,
            self.pages.v_pages,
            new.kv_index,
            new.positions,
            new.inv_freq,
            new.rope_scale,
            new.q_norm,
            new.k_norm,
            new.eps,
        )


@dataclass(eq=False)
class Attention(Op):
    """Causal attention of each token over its sequence's pages."""

    READS, WRITES = ("q",), ("out",)
    out: DeviceBuffer
    q: DeviceBuffer
    k_pages: torch.Tensor
    v_pages: torch.Tensor
    num_heads: int
    scale: float
    window: int
    sinks: torch.Tensor | None
    workspace: DecodeWorkspace

    @cached_property
    def _spread(self) -> Spread:
        return spread(self.k_pages, self.num_heads, self.window)

    def decode(self, step: DeviceStep, new: NewTokens | None = None) -> None:
        """Attend from the sequences of one token, ``new`` where their keys are not stored yet."""
        num = step.num_decode
        attention_decode(
            self.q.rows(step)[:num],
            self.k_pages,
            self.v_pages,
            step.page_table[:num],
            step.decode_len,
            self.num_heads,
            self.scale,
            self.window,
            self.sinks,
            out=self.out.rows(step)[:num],
            workspace=self.workspace,
            new=new,
        )

    def run(self, step: DeviceStep) -> None:
        # In a padded step decode clears the rows of some prompts, which come after it
        if step.num_decode:
            self.decode(step)
        if step.blocks:
            blocks = step.blocks[self._spread]
            attention_prefill(
                self.q.rows(step),
                self.k_pages,
                self.v_pages,
                step.page_table,
                step.q_start,
                step.positions,
                blocks.rows,
                self.num_heads,
                self.scale,
                self.window,
                self.sinks,
                out=self.out.rows(step),
                parts=self.workspace.parts if blocks.is_shared else None,
            )


@dataclass(eq=False)
class TokenAttention(Op):
    """QkvPost, then Attention; in steps of one token a sequence one kernel, which leaves q as it is."""

    READS, WRITES = ("q", "k", "v"), ("q", "out")
    post: QkvPost
    attention: Attention

    @property
    def q(self) -> DeviceBuffer:
        """As the products gave it, or rotated in place."""
        return self.post.q

    @property
    def k(self) -> DeviceBuffer:
        """The step's keys."""
        return self.post.k

    @property
    def v(self) -> DeviceBuffer:
        """The step's values."""
        return self.post.v

    @property
    def out(self) -> DeviceBuffer:
        """What the heads mixed."""
        return self.attention.out

    def run(self, step: DeviceStep) -> None:
        if step.blocks:
            self.post.run(step)
            self.attention.run(step)
            return
        self.attention.decode(step, self.post.new_tokens(step))


@dataclass(eq=False)
class SelectRows(Op):
    """out = x[logit_rows]."""

    READS, WRITES = ("x",), ("out",)
    out: DeviceBuffer
    x: DeviceBuffer

    def run(self, step: DeviceStep) -> None:
        select_logit_rows(self.x.rows(step), step.logit_rows, out=self.out.rows(step))


def heads_of(x: torch.Tensor, channels: int) -> torch.Tensor:
    """Return x [T, H*C] as [T, H, C], whatever lies between its rows."""
    return x.as_strided((x.shape[0], x.shape[1] // channels, channels), (x.stride(0), channels, 1))


def joined(parts: list[torch.Tensor]) -> torch.Tensor:
    """Return the tensor whose neighbouring columns ``parts`` are."""
    first = parts[0]
    width = sum(part.shape[1] for part in parts)
    return first.as_strided((first.shape[0], width), first.stride())


def normalised(
    x: DeviceBuffer, norm: RmsNorm | None, step: DeviceStep
) -> tuple[torch.Tensor, tuple[torch.Tensor, float] | None]:
    """Return the rows that a product takes and the norm that it applies to them.

    Few rows are normalised by the kernel that streams the weights; many are before it, once.
    """
    if norm is None:
        return x.rows(step), None
    if step.num_tokens <= MAX_STREAMED_ROWS:
        return norm.x.rows(step), (norm.weight, norm.eps)
    norm.run(step)
    return norm.out.rows(step), None
