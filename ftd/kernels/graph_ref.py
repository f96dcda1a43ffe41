"""ReferenceGraph: one step as a program, recorded once, run by the reference ops.

Its results are the oracle of ``_graph_cy``, and the slow way to run a model on any machine.

    g = ReferenceGraph(None, max_tokens=…, …)       record: buffers are handles, nothing is computed
    x = g.buffer(D); g.embedding(x, weight); …
    g.finish()                                      allocate; no recording after this
    g.run(ids, positions, …); g.view(x)             any number of times, with other arrays of other lengths

A buffer holds one row a token (``buffer``) or one row a wanted logit (``logit_buffer``); an op's buffers must
agree, and only ``select_logit_rows`` goes from the first kind to the second.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ftd.kernels.add_ref import add
from ftd.kernels.attention_ref import attention
from ftd.kernels.embedding_ref import embedding
from ftd.kernels.expert_ffn_ref import check_bank, expert_ffn
from ftd.kernels.geglu_ref import geglu
from ftd.kernels.kv_store_ref import check_pages, kv_store
from ftd.kernels.matmul_ref import matmul
from ftd.kernels.quant import ExpertBank, QuantMatrix
from ftd.kernels.rms_norm_ref import rms_norm
from ftd.kernels.rope_ref import rope
from ftd.kernels.route_topk_ref import check as check_router
from ftd.kernels.route_topk_ref import route_topk
from ftd.kernels.select_logit_rows_ref import select_logit_rows
from ftd.kernels.shapes import ArrayLike, expect
from ftd.kernels.step import Limits, Step, check_step
from ftd.kernels.swiglu_ref import swiglu

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Precision = Literal["fast", "f32"]


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """Handle of an activation ``[rows, width]`` f32; the graph that made it owns the memory."""

    width: int
    rows: Literal["tokens", "logits"]


@dataclass(frozen=True, slots=True, eq=False)
class Routing:
    """Handle of the experts that one layer's router chose; the graph that made it owns the memory."""

    num_experts: int
    num_chosen: int


class ReferenceGraph:
    """Records ops and interprets them with the references, one NumPy call an op. One thread at a time."""

    def __init__(
        self,
        pool: object = None,
        *,
        max_tokens: int,
        max_sequences: int,
        max_logits: int,
        page_size: int,
        max_pages_per_sequence: int,
        precision: Precision = "fast",
    ) -> None:
        self._limits = Limits(
            max_tokens=max_tokens,
            max_sequences=max_sequences,
            max_logits=max_logits,
            page_size=page_size,
            max_pages_per_sequence=max_pages_per_sequence,
        )
        if precision not in ("fast", "f32"):
            raise ValueError(f"precision must be fast or f32, got {precision!r}")
        self._precision: Precision = precision
        self._program: list[Callable[[Step], None]] = []
        self._memory: dict[Buffer, Floats] = {}
        self._routed: dict[Routing, tuple[Ints, Floats]] = {}
        self._uses: dict[Routing, NDArray[np.int64]] = {}
        self._finished = False
        self._num_rows = {"tokens": 0, "logits": 0}
        self._num_ids = 2**31
        self._num_pages = 2**31 // page_size

    def buffer(self, width: int) -> Buffer:
        """Return a new activation buffer ``[max_tokens, width]``."""
        return self._new(Buffer(width, "tokens"))

    def logit_buffer(self, width: int) -> Buffer:
        """Return a new buffer ``[max_logits, width]`` for ops after ``select_logit_rows``."""
        return self._new(Buffer(width, "logits"))

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

    def rope(self, x: Buffer, num_heads: int, head_dim: int, inv_freq: Floats, scale: float = 1.0) -> None:
        """Record x = rope(x) with the step's positions."""
        self._expect(x, num_heads * head_dim, "tokens")
        expect("inv_freq", inv_freq, "float32", ("C_rot/2",))
        if 2 * inv_freq.shape[0] > head_dim:
            raise ValueError(f"inv_freq rotates {2 * inv_freq.shape[0]} channels, a head has {head_dim}")

        def run(step: Step) -> None:
            rows = self.view(x)
            heads = rows.reshape(-1, num_heads, head_dim)
            rows[:] = rope(heads, step.positions, inv_freq, scale).reshape(rows.shape)

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
            )
            self._write(out, result.reshape(rows.shape))

        self._record(run)

    def route_topk(
        self,
        logits: Buffer,
        num_chosen: int,
        scoring: str = "softmax",
        renormalise: bool = True,
        scale: float = 1.0,
        bias: Floats | None = None,
        num_groups: int = 1,
        top_groups: int = 1,
        group_top: int = 2,
    ) -> Routing:
        """Record the choice of experts by a router's logits; return the handle that expert_ffn takes."""
        self._refuse_finished()
        self._expect(logits, logits.width, "tokens")
        example = np.empty((0, logits.width), np.float32)
        check_router(example, num_chosen, scoring, bias, num_groups, top_groups, group_top)
        routing = Routing(logits.width, num_chosen)
        self._uses[routing] = np.zeros(logits.width + 1, np.int64)

        def run(step: Step) -> None:
            self._routed[routing] = ids, _ = route_topk(
                self.view(logits),
                num_chosen,
                scoring,
                renormalise,
                scale,
                bias,
                num_groups,
                top_groups,
                group_top,
            )
            counts = np.bincount(ids.reshape(-1), minlength=logits.width)
            self._uses[routing] += [*counts, np.count_nonzero(counts)]

        self._record(run)
        return routing

    def expert_ffn(
        self,
        out: Buffer,
        x: Buffer,
        routing: Routing,
        bank: ExpertBank,
        activation: str = "silu",
        limit: float = 7.0,
    ) -> None:
        """Record out = the weighted sum of what the chosen experts make of x; see expert_ffn_ref."""
        width, _ = check_bank(bank, activation)
        self._expect(x, width, "tokens")
        self._expect(out, width, "tokens")
        self._expect_routing(routing, bank)

        def run(step: Step) -> None:
            ids, weights = self._routed[routing]
            self._write(out, expert_ffn(self.view(x), ids, weights, bank, activation, limit, self._precision))

        self._record(run)

    def routed(self, routing: Routing) -> tuple[Ints, Floats]:
        """Return ids and weights [T, K] of the last step, valid until the next run."""
        return self._routed[routing]

    def expert_uses(self, routing: Routing) -> NDArray[np.int64]:
        """Return [E + 1]: tokens that each expert served in all runs; last, how often one was read."""
        return self._uses[routing]

    def select_logit_rows(self, out: Buffer, x: Buffer) -> None:
        """Record out = x[logit_rows]; ``out`` is a logit buffer."""
        self._expect(x, out.width, "tokens")
        self._expect(out, x.width, "logits")
        self._record(lambda step: self._write(out, select_logit_rows(self.view(x), step.logit_rows)))

    def finish(self) -> None:
        """Allocate the buffers; recording ends."""
        self._refuse_finished()
        count = {"tokens": self._limits.max_tokens, "logits": self._limits.max_logits}
        for buffer in self._memory:
            self._memory[buffer] = np.zeros((count[buffer.rows], buffer.width), np.float32)
        self._finished = True

    def run(
        self,
        ids: Ints,
        positions: Ints,
        kv_index: Ints,
        q_start: Ints,
        kv_len: Ints,
        page_table: Ints,
        logit_rows: Ints,
    ) -> None:
        """Run the program on one step.

        ids         [T] i32              positions  [T] i32     kv_index [T] i32 page * page_size + offset
        q_start     [B + 1] i32          kv_len     [B] i32, this step's tokens included
        page_table  [B, max_pages] i32   logit_rows [num_logits] i32 token index

        Raises ValueError if the graph is not finished, a shape or dtype differs or a value lies out of range.
        """
        if not self._finished:
            raise ValueError("finish() must come before run()")
        step = Step(ids, positions, kv_index, q_start, kv_len, page_table, logit_rows)
        check_step(step, self._limits, self._num_ids, self._num_pages)
        self._num_rows = {"tokens": len(ids), "logits": len(logit_rows)}
        for op in self._program:
            op(step)

    def view(self, buffer: Buffer) -> Floats:
        """Return the rows of ``buffer`` of the last step: f32 [rows, width], valid until the next run."""
        if not self._finished:
            raise ValueError("finish() must come before view()")
        return self._memory[buffer][: self._num_rows[buffer.rows]]

    @property
    def num_bytes(self) -> int:
        """Bytes of all buffers (0 until finished)."""
        return sum(memory.nbytes for memory in self._memory.values())

    def _new(self, buffer: Buffer) -> Buffer:
        self._refuse_finished()
        if buffer.width < 1:
            raise ValueError(f"width must be at least 1, got {buffer.width}")
        self._memory[buffer] = np.empty((0, buffer.width), np.float32)
        return buffer

    def _record(self, op: Callable[[Step], None]) -> None:
        self._refuse_finished()
        self._program.append(op)

    def _refuse_finished(self) -> None:
        if self._finished:
            raise ValueError("the graph is finished")

    def _write(self, buffer: Buffer, values: Floats) -> None:
        self.view(buffer)[:] = values

    def _expect(self, buffer: Buffer, width: int, rows: str) -> None:
        if buffer not in self._memory:
            raise ValueError("the buffer belongs to another graph")
        if (buffer.width, buffer.rows) != (width, rows):
            raise ValueError(f"buffer must be [{rows}, {width}], got [{buffer.rows}, {buffer.width}]")

    def _expect_routing(self, routing: Routing, bank: ExpertBank) -> None:
        if routing not in self._uses:
            raise ValueError("the routing belongs to another graph")
        if routing.num_experts != bank.num_experts:
            raise ValueError(f"the router has {routing.num_experts} experts, the bank {bank.num_experts}")

    def _expect_product(self, out: Buffer, x: Buffer, weight: QuantMatrix) -> None:
        self._expect(x, weight.shape[1], x.rows)
        self._expect(out, weight.shape[0], x.rows)

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
