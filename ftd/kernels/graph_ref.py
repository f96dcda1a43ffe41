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

from ftd.kernels.attention_ref import attention
from ftd.kernels.embedding_ref import embedding
from ftd.kernels.geglu_ref import geglu
from ftd.kernels.kv_store_ref import check_pages, kv_store
from ftd.kernels.matmul_ref import matmul
from ftd.kernels.quant import QuantMatrix
from ftd.kernels.rms_norm_ref import rms_norm
from ftd.kernels.rope_ref import rope
from ftd.kernels.select_logit_rows_ref import select_logit_rows
from ftd.kernels.shapes import ArrayLike, expect, expect_range
from ftd.kernels.swiglu_ref import swiglu

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Precision = Literal["fast", "f32"]


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """Handle of an activation ``[rows, width]`` f32; the graph that made it owns the memory."""

    width: int
    rows: Literal["tokens", "logits"]


@dataclass(frozen=True, slots=True)
class Step:
    """What changes from step to step; the letters are those of ``ReferenceGraph.run``."""

    ids: Ints
    positions: Ints
    kv_index: Ints
    q_start: Ints
    kv_len: Ints
    page_table: Ints
    logit_rows: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The largest step a graph accepts."""

    max_tokens: int
    max_sequences: int
    max_logits: int
    page_size: int
    max_pages_per_sequence: int

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


def check_step(step: Step, limits: Limits, num_ids: int, num_pages: int) -> None:
    """Raise ValueError unless a step fits the limits and every index in it lies in range.

    num_ids    rows of the embedding
    num_pages  pages of the smallest KV array
    """
    tokens, sequences, logits = len(step.ids), len(step.kv_len), len(step.logit_rows)
    expect("ids", step.ids, "int32", ("T",))
    expect("positions", step.positions, "int32", (tokens,))
    expect("kv_index", step.kv_index, "int32", (tokens,))
    expect("q_start", step.q_start, "int32", (sequences + 1,))
    expect("kv_len", step.kv_len, "int32", (sequences,))
    expect("page_table", step.page_table, "int32", (sequences, "max_pages"))
    expect("logit_rows", step.logit_rows, "int32", ("num_logits",))
    expect_range("tokens of a step", tokens, tokens, 1, limits.max_tokens)
    expect_range("sequences of a step", sequences, sequences, 1, limits.max_sequences)
    expect_range("logits of a step", logits, logits, 0, limits.max_logits)
    columns = step.page_table.shape[1]
    expect_range("columns of page_table", columns, columns, 1, limits.max_pages_per_sequence)
    if step.q_start[0] != 0 or step.q_start[-1] != tokens or (np.diff(step.q_start) < 0).any():
        raise ValueError(f"q_start must rise from 0 to {tokens}, got {step.q_start.tolist()}")
    _expect_values("ids", step.ids, num_ids)
    _expect_values("logit_rows", step.logit_rows, tokens)
    _expect_values("kv_index", step.kv_index, num_pages * limits.page_size)
    _expect_values("kv_len", step.kv_len, columns * limits.page_size + 1)
    used = np.arange(columns) < -(-step.kv_len[:, None] // limits.page_size)
    _expect_values("page_table", step.page_table[used], num_pages)
    length = np.repeat(step.kv_len, np.diff(step.q_start))
    if (step.positions < 0).any() or (step.positions >= length).any():
        wrong = int(np.flatnonzero((step.positions < 0) | (step.positions >= length))[0])
        raise ValueError(
            f"position of token {wrong} must be below {length[wrong]}, got {step.positions[wrong]}"
        )


def _expect_values(name: str, values: Ints, count: int) -> None:
    """Raise ValueError unless all values lie in 0 .. count - 1."""
    if values.size:
        expect_range(name, int(values.min()), int(values.max()), 0, count - 1)


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

    def add(self, out: Buffer, x: Buffer) -> None:
        """Record out += x."""
        self._expect(x, out.width, out.rows)
        self._record(lambda step: self._write(out, self.view(out) + self.view(x)))

    def linear(self, out: Buffer, x: Buffer, weight: QuantMatrix, bias: Floats | None = None) -> None:
        """Record out = x weight^T + bias."""
        self.linears([(out, weight, bias)], x)

    def linears(self, products: Sequence[tuple[Buffer, QuantMatrix, Floats | None]], x: Buffer) -> None:
        """Record several products of the same ``x``."""
        for out, weight, bias in products:
            self._expect_product(out, x, weight)
            if bias is not None:
                expect("bias", bias, "float32", (out.width,))

        def run(step: Step) -> None:
            rows = self.view(x)
            for out, weight, bias in products:
                self._write(out, matmul(rows, weight, bias, precision=self._precision))

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
