# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Recorder: buffers, the C structs of recorded ops, and one call that hands all of them to the pool."""

import numpy as np

from ftd.kernels.kv_store_ref import check_pages
from ftd.kernels.reference_recorder import Buffer
from ftd.kernels.shapes import expect
from ftd.kernels.step import Limits

from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free

from ftd.kernels._pool cimport Op, ROWS_LOGITS, ROWS_TOKENS, Step, run_ops
from ftd.kernels._step_cy cimport address_of, aligned

cdef extern from "chain.h" namespace "ftd" nogil:
    cdef struct Chain "ftd::Chain":
        const Op* ops
        int64_t count

    void chain_op(const void*, const Step*, int32_t, int32_t) noexcept

# What becomes of an op in a step of one token: all parts as ever, one part of a chain, nothing.
cdef int8_t PARALLEL = 0, LIGHT = 1, NEEDLESS = 2


cdef class Recorder:
    """Owns the buffers and the program of a graph; keeps what its ops point to alive. One thread at a time."""

    def __init__(
        self, pool=None, *, max_tokens, max_sequences, max_logits, page_size, max_pages_per_sequence, precision="fast"
    ):
        self._limits = Limits(
            max_tokens=max_tokens,
            max_sequences=max_sequences,
            max_logits=max_logits,
            page_size=page_size,
            max_pages_per_sequence=max_pages_per_sequence,
        )
        if precision not in ("fast", "f32"):
            raise ValueError(f"precision must be fast or f32, got {precision!r}")
        self._pool = pool
        self._parts = 1 if pool is None else self._pool.num_threads
        self._fast = precision == "fast"
        self._most_rows = max(max_tokens, max_logits)
        self._memory, self._keep = {}, []
        self._num_ids = 2**31
        self._num_pages = 2**31 // page_size
        self._step = StepMemory(self._limits)

    def __dealloc__(self):
        cdef size_t i
        for i in range(self._structs.size()):
            free(self._structs[i])

    cdef void* _new(self, size_t num_bytes) except NULL:
        cdef void* memory = calloc(1, num_bytes)
        if memory == NULL:
            raise MemoryError(f"no memory for the arguments of an op: {num_bytes} bytes")
        self._structs.push_back(memory)
        return memory

    cdef int _record(self, OpFn run, const void* args) except -1:
        cdef Op op
        op.run = run
        op.args = args
        self._ops.push_back(op)
        self._one_token.push_back(PARALLEL)
        return 0

    cdef void _light(self, bint light) noexcept:
        """Say of the op recorded last that one thread does it for one token sooner than all threads meet."""
        if light:
            self._one_token[self._one_token.size() - 1] = LIGHT

    cdef void _needless(self) noexcept:
        """Say of the op recorded last that it has nothing to do for one token."""
        self._one_token[self._one_token.size() - 1] = NEEDLESS

    cdef int _chain(self) except -1:
        """Make the program of one token: light ops that follow one another become one op of one part."""
        cdef size_t i, count = self._ops.size()
        cdef Chain* chain = NULL
        cdef Op op
        self._light_ops.reserve(count)
        for i in range(count):
            if self._one_token[i] == NEEDLESS:
                continue
            if self._one_token[i] == PARALLEL:
                self._one_token_ops.push_back(self._ops[i])
                chain = NULL
                continue
            if chain == NULL:
                chain = <Chain*>self._new(sizeof(Chain))
                chain.ops = self._light_ops.data() + self._light_ops.size()
                op.run = chain_op
                op.args = chain
                self._one_token_ops.push_back(op)
            self._light_ops.push_back(self._ops[i])
            chain.count += 1
        return 0

    cdef float* _data(self, object buffer) except NULL:
        return <float*>address_of(self._memory[buffer])

    def _expect(self, buffer, width: int, rows: str) -> None:
        if self._finished:
            raise ValueError("the graph is finished")
        if buffer not in self._memory:
            raise ValueError("the buffer belongs to another graph")
        if (buffer.width, buffer.rows) != (width, rows):
            raise ValueError(f"buffer must be [{rows}, {width}], got [{buffer.rows}, {buffer.width}]")

    def _expect_pages(self, k_pages, v_pages) -> None:
        check_pages(k_pages, v_pages, "G", "C")
        if k_pages.shape[3] != self._limits.page_size:
            raise ValueError(f"pages must hold {self._limits.page_size} tokens, got {k_pages.shape[3]}")
        self._num_pages = min(self._num_pages, k_pages.shape[0])
        self._keep.append((k_pages, v_pages))

    def _vector(self, name: str, values, size):
        """Return a checked f32 vector as a contiguous array that the graph keeps."""
        expect(name, values, "float32", (size,))
        kept = np.ascontiguousarray(values)
        self._keep.append(kept)
        return kept

    def _new_buffer(self, width: int, rows: str):
        if self._finished:
            raise ValueError("the graph is finished")
        if width < 1:
            raise ValueError(f"width must be at least 1, got {width}")
        buffer = Buffer(width, rows)
        count = self._limits.max_tokens if rows == "tokens" else self._limits.max_logits
        self._memory[buffer] = aligned(4 * count * width)
        return buffer

    def buffer(self, width: int):
        """Return a new activation buffer [max_tokens, width]."""
        return self._new_buffer(width, "tokens")

    def logit_buffer(self, width: int):
        """Return a new buffer [max_logits, width] for ops after select_logit_rows."""
        return self._new_buffer(width, "logits")

    def finish(self) -> None:
        """End the recording."""
        if self._finished:
            raise ValueError("the graph is finished")
        self._finished = True
        self._chain()

    def run(self, ids, positions, kv_index, q_start, kv_len, page_table, logit_rows, state_index=None) -> None:
        """Run the program on one step; arguments and errors as ReferenceGraph.run."""
        if not self._finished:
            raise ValueError("finish() must come before run()")
        self._step.fill(
            (ids, positions, kv_index, q_start, kv_len, page_table, logit_rows, state_index),
            self._num_ids,
            self._num_pages,
            self._num_states,
        )
        cdef vector[Op]* ops = &self._one_token_ops if self._step.step.num_tokens == 1 else &self._ops
        with nogil:
            run_ops(self._pool, ops.data(), <int32_t>ops.size(), &self._step.step)

    def view(self, buffer):
        """Return the rows of buffer of the last step: f32 [rows, width], valid until the next run."""
        if not self._finished:
            raise ValueError("finish() must come before view()")
        rows = self._step.step.num_tokens if buffer.rows == "tokens" else self._step.step.num_logits
        return self._memory[buffer].view(np.float32).reshape(-1, buffer.width)[:rows]

    @property
    def num_bytes(self) -> int:
        """Bytes of all buffers and of what ops share."""
        return sum(array.nbytes for array in self._memory.values())


cdef int32_t rows_of(object buffer):
    return ROWS_LOGITS if buffer.rows == "logits" else ROWS_TOKENS
