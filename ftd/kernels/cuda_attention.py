"""The ops of attention over pages in a recorded GPU program: what is stored, and what attends to it."""

from dataclasses import dataclass
from functools import cached_property

import torch

from ftd.kernels.attention_token_triton import NewTokens
from ftd.kernels.attention_triton import (
    DecodeWorkspace,
    Spread,
    attention_decode,
    attention_prefill,
    spread,
)
from ftd.kernels.cuda_program import DeviceBuffer, Op, RmsNorm, Rope, heads_of
from ftd.kernels.cuda_step import DeviceStep
from ftd.kernels.kv_store_triton import kv_store
from ftd.kernels.qkv_post_triton import qkv_post


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
