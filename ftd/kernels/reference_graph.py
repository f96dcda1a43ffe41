"""ReferenceGraph: one step as a program, recorded once, run by the reference ops.

Its results are the oracle of ``_graph_cy``, and the slow way to run a model on any machine.

    g = ReferenceGraph(None, max_tokens=…, …)       record: buffers are handles, nothing is computed
    x = g.buffer(D); g.embedding(x, weight); …
    g.finish()                                      allocate; no recording after this
    g.run(ids, positions, …); g.view(x)             any number of times, with other arrays of other lengths

A buffer holds one row a token (``buffer``) or one row a wanted logit (``logit_buffer``); an op's buffers must
agree, and only ``select_logit_rows`` goes from the first kind to the second.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ftd.kernels.add_ref import add
from ftd.kernels.attention_ref import attention
from ftd.kernels.embedding_ref import embedding
from ftd.kernels.geglu_ref import geglu
from ftd.kernels.kv_store_ref import check_pages, kv_store
from ftd.kernels.matmul_ref import matmul
from ftd.kernels.quant import QuantMatrix
from ftd.kernels.reference_encoder import EncoderOps
from ftd.kernels.reference_experts import ExpertOps, Routing
from ftd.kernels.reference_latent import LatentOps
from ftd.kernels.reference_recorder import Buffer, Floats
from ftd.kernels.reference_states import StateOps
from ftd.kernels.rms_norm_ref import rms_norm
from ftd.kernels.rope_ref import rope
from ftd.kernels.select_logit_rows_ref import select_logit_rows
from ftd.kernels.shapes import ArrayLike, expect
from ftd.kernels.sigmoid_gate_ref import sigmoid_gate
from ftd.kernels.step import Step
from ftd.kernels.swiglu_ref import swiglu

__all__ = ["Buffer", "ReferenceGraph", "Routing", "check_pages"]


class ReferenceGraph(LatentOps, EncoderOps, StateOps, ExpertOps):
    """Records ops and interprets them with the references, one NumPy call an op. One thread at a time."""

    def embedding(self, out: Buffer, weight: QuantMatrix, scale: float = 1.0) -> None:
        """Record out = scale * weight[ids]."""
        self._expect(out, weight.shape[1], "tokens")
        self._num_ids = min(self._num_ids, weight.shape[0])
        self._record(lambda step: self._write(out, embedding(step.ids, weight, scale)))

    def rms_norm(self, out: Buffer, x: Buffer, weight: Floats, eps: float) -> None:
        """Record out = rms_norm(x, weight, eps); ``out`` may be ``x``."""
        self._expect(out, x.width, x.rows)
        expect("weight", weight, "float32", (x.width,))
        self._record(lambda step: self._write(out, rms_norm(self.view(x), weight, eps)))

    def head_rms_norm(self, x: Buffer, num_heads: int, weight: Floats, eps: float) -> None:
        """Record x = rms_norm of each head of ``x`` [rows, num_heads * C]; weight [C]."""
        expect("weight", weight, "float32", (_split(x, num_heads),))
        channels = weight.shape[0]

        def run(step: Step) -> None:
            rows = self.view(x)
            rows[:] = rms_norm(rows.reshape(-1, channels), weight, eps).reshape(rows.shape)

        self._record(run)

    def add(self, out: Buffer, x: Buffer, scale: float = 1.0) -> None:
        """Record out += scale * x."""
        self._expect(x, out.width, out.rows)
        self._record(lambda step: self._write(out, add(self.view(out), self.view(x), scale)))

    def linear(self, out: Buffer, x: Buffer, weight: QuantMatrix, bias: Floats | None = None) -> None:
        """Record out = x weight^T + bias."""
        self.linears([(out, weight, bias)], x)

    def linears(
        self, products: Sequence[tuple[Buffer, QuantMatrix, Floats | None]], x: Buffer, num_exact: int = 0
    ) -> None:
        """Record several products of the same ``x``; the last ``num_exact`` take it in f32 precision."""
        for out, weight, bias in products:
            self._expect_product(out, x, weight)
            if bias is not None:
                expect("bias", bias, "float32", (out.width,))

        def run(step: Step) -> None:
            rows = self.view(x)
            for i, (out, weight, bias) in enumerate(products):
                precision = "f32" if i >= len(products) - num_exact else self._precision
                self._write(out, matmul(rows, weight, bias, precision=precision))

        self._record(run)

    def linear_add(self, out: Buffer, x: Buffer, weight: QuantMatrix) -> None:
        """Record out += x weight^T."""
        self._expect_product(out, x, weight)
        self._record(
            lambda step: self._write(
                out, self.view(out) + matmul(self.view(x), weight, precision=self._precision)
            )
        )

    def swiglu(self, out: Buffer, gate: Buffer, up: Buffer) -> None:
        """Record out = silu(gate) * up; ``out`` may be ``gate``."""
        self._expect(out, gate.width, gate.rows)
        self._expect(up, gate.width, gate.rows)
        self._record(lambda step: self._write(out, swiglu(self.view(gate), self.view(up))))

    def geglu(self, out: Buffer, gate: Buffer, up: Buffer) -> None:
        """Record out = gelu(gate) * up; ``out`` may be ``gate``."""
        self._expect(out, gate.width, gate.rows)
        self._expect(up, gate.width, gate.rows)
        self._record(lambda step: self._write(out, geglu(self.view(gate), self.view(up))))

    def sigmoid_gate(self, out: Buffer, x: Buffer, gate: Buffer) -> None:
        """Record out = x * sigmoid(gate); ``out`` may be ``x`` or ``gate``."""
        self._expect(out, x.width, x.rows)
        self._expect(gate, x.width, x.rows)
        self._record(lambda step: self._write(out, sigmoid_gate(self.view(x), self.view(gate))))

    def rope(
        self, x: Buffer, num_heads: int, head_dim: int, inv_freq: Floats, scale: float = 1.0, first: int = 0
    ) -> None:
        """Record x = rope(x) with the step's positions; channels before ``first`` of a head stay."""
        self._expect(x, num_heads * head_dim, "tokens")
        expect("inv_freq", inv_freq, "float32", ("C_rot/2",))
        if first < 0 or 2 * inv_freq.shape[0] > head_dim - first:
            raise ValueError(
                f"inv_freq rotates {2 * inv_freq.shape[0]} channels, a head has {head_dim - first}"
            )

        def run(step: Step) -> None:
            rows = self.view(x)
            heads = rows.reshape(-1, num_heads, head_dim)
            heads[:, :, first:] = rope(heads[:, :, first:], step.positions, inv_freq, scale)

        self._record(run)

    def kv_store(
        self, k: Buffer, v: Buffer, k_pages: NDArray[np.floating], v_pages: NDArray[np.floating]
    ) -> None:
        """Record the step's keys and values going to their pages; the graph keeps the arrays alive."""
        self._expect_pages(k_pages, v_pages)
        groups, channels = k_pages.shape[1:3]
        self._expect(k, groups * channels, "tokens")
        self._expect(v, groups * channels, "tokens")

        def run(step: Step) -> None:
            shape = (-1, groups, channels)
            kv_store(
                self.view(k).reshape(shape), self.view(v).reshape(shape), k_pages, v_pages, step.kv_index
            )

        self._record(run)

    def attention(
        self,
        out: Buffer,
        q: Buffer,
        k_pages: NDArray[np.floating],
        v_pages: NDArray[np.floating],
        num_heads: int,
        scale: float,
        window: int = 0,
        sinks: Floats | None = None,
        causal: bool = True,
    ) -> None:
        """Record out = attention(q, pages) with the step's sequences."""
        self._expect_pages(k_pages, v_pages)
        channels = k_pages.shape[2]
        self._expect(q, num_heads * channels, "tokens")
        self._expect(out, num_heads * channels, "tokens")
        if num_heads % k_pages.shape[1]:
            raise ValueError(
                f"query heads must be a multiple of key-value heads, got {num_heads} and {k_pages.shape[1]}"
            )
        if window < 0:
            raise ValueError(f"window must be at least 0, got {window}")
        if window and not causal:
            raise ValueError(f"attention in both directions has no window, got {window}")
        if sinks is not None:
            expect("sinks", sinks, "float32", (num_heads,))

        def run(step: Step) -> None:
            rows = self.view(q)
            result = attention(
                rows.reshape(-1, num_heads, channels),
                k_pages,
                v_pages,
                step.page_table,
                step.q_start,
                step.kv_len,
                step.positions,
                scale,
                window,
                sinks,
                causal=causal,
            )
            self._write(out, result.reshape(rows.shape))

        self._record(run)

    def select_logit_rows(self, out: Buffer, x: Buffer) -> None:
        """Record out = x[logit_rows]; ``out`` is a logit buffer."""
        self._expect(x, out.width, "tokens")
        self._expect(out, x.width, "logits")
        self._record(lambda step: self._write(out, select_logit_rows(self.view(x), step.logit_rows)))

    def _expect_product(self, out: Buffer, x: Buffer, weight: QuantMatrix) -> None:
        self._expect(x, weight.shape[1], x.rows)
        self._expect(out, weight.shape[0], x.rows)
        if out is x:
            raise ValueError("the product of a buffer cannot go to the buffer itself")

    def _expect_pages(self, k_pages: ArrayLike, v_pages: ArrayLike) -> None:
        check_pages(k_pages, v_pages, "G", "C")
        if k_pages.shape[3] != self._limits.page_size:
            raise ValueError(f"pages must hold {self._limits.page_size} tokens, got {k_pages.shape[3]}")
        self._num_pages = min(self._num_pages, k_pages.shape[0])


def _split(x: Buffer, num_heads: int) -> int:
    """Return the channels of each of ``num_heads`` heads of ``x``."""
    if num_heads < 1 or x.width % num_heads:
        raise ValueError(f"width {x.width} is no multiple of {num_heads} heads")
    return x.width // num_heads
