# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""ExpertWorker: runs experts for a card on the CPU, in place in their banks; see src/expert_worker.h."""

import numpy as np

from ftd.kernels import cpu

from libc.stdint cimport int32_t, int64_t, uint16_t
from libc.stdlib cimport calloc, free
from libcpp.vector cimport vector

from ftd.kernels._expert_ffn_cy cimport (
    NUM_EXPERT_OPS, ExpertFfnArgs, fill_expert_args, fill_expert_ops, place_expert_workspace, set_tile_parts,
)
from ftd.kernels._pool cimport Op, Pool
from ftd.kernels._step_cy cimport address_of, aligned, floats_of

cdef extern from "expert_worker.h" namespace "ftd" nogil:
    cdef struct Layer "ftd::WorkerLayer":
        ExpertFfnArgs args
        Op* ops

    cdef cppclass CWorker "ftd::ExpertWorker":
        CWorker(int32_t, const vector[int]&, int32_t*, const void*, float*, int64_t, int32_t, int32_t) except +
        void add(const Layer*) except +
        int64_t own_bytes()
        void start(char*) except +
        void stop()
        void stall(bint)
        int64_t num_messages()
        int64_t busy_ns()


cdef class ExpertWorker:
    """Threads that answer a mailbox, as many as ``pool`` has and on its cores; they spin while messages come.

    words    [32]   i32          the mailbox's words
    on_cpu   [T, K] i32          the layer's experts to run, negative where somebody else does
    weights  [T, K] f32
    x        [T, D] f32, or u16 that holds bf16
    out      [N, D] f32          the weighted sums, of up to N tokens
    many     [T, D] u16          those of more, bf16, may lie where ``out`` does; None where N is T

    The arrays are views of pinned memory that the card writes and reads; they live as long as the worker.
    """

    cdef CWorker* worker
    cdef vector[Layer*] layers
    cdef object arrays, keep
    cdef Pool pool
    cdef bint fast, started

    def __init__(self, Pool pool, words, on_cpu, weights, x, out, precision: str = "fast", many=None) -> None:
        most = out if many is None else many
        if x.dtype not in (np.float32, np.uint16) or x.ndim != 2 or most.shape != x.shape or out.dtype != np.float32:
            raise ValueError(f"x and out must be [T, D] of f32 or u16 and f32, got {x.dtype} {x.shape} {most.shape}")
        if many is not None and (many.dtype != np.uint16 or out.shape[1:] != x.shape[1:] or len(out) > len(x)):
            raise ValueError(f"many must be [T, D] of u16 and out [N, D], got {many.dtype} {many.shape} {out.shape}")
        if on_cpu.shape != weights.shape or on_cpu.dtype != np.int32 or weights.dtype != np.float32:
            raise ValueError("on_cpu and weights must be [T, K] i32 and f32")
        if words.dtype != np.int32 or words.size < 32 or on_cpu.shape[0] != x.shape[0]:
            raise ValueError("words must be [32] i32 and all arrays of as many tokens")
        self.arrays = (words, on_cpu, weights, x, out)
        if not all(array.flags.c_contiguous for array in (*self.arrays, most)):
            raise ValueError("the arrays of a mailbox must be contiguous")
        rows = np.zeros(x.shape, np.float32) if x.dtype == np.uint16 else None
        self.keep = [rows, many]
        self.pool = pool
        self.fast = precision == "fast"
        cdef float* converted = NULL
        if rows is not None:
            converted = <float*>address_of(rows)
        cdef vector[int] cores = cpu.usable_cores()
        self.worker = new CWorker(
            pool.num_threads, cores, <int32_t*>address_of(words), <const void*>address_of(x), converted, x.shape[1],
            x.shape[0], out.shape[0],
        )

    def add(self, bank, activation: str = "silu", limit: float = 7.0) -> None:
        """Take the next layer's bank, whose records stay where they are; before ``start``."""
        if self.started:
            raise ValueError("banks must be added before start()")
        words, on_cpu, weights, x, out = self.arrays
        cdef Layer* layer = <Layer*>calloc(1, sizeof(Layer))
        if layer == NULL:
            raise MemoryError
        self.layers.push_back(layer)
        fill_expert_args(&layer.args, bank, on_cpu.shape[1], activation, limit, self.fast)
        if layer.args.width != x.shape[1]:
            raise ValueError(f"the bank takes rows of {layer.args.width}, the mailbox has {x.shape[1]}")
        layer.args.x = floats_of(x if self.keep[0] is None else self.keep[0])
        if layer.args.tile_parts and x.dtype == np.uint16:
            set_tile_parts(&layer.args, 1)  # the card computes with bfloat16 too
            layer.args.bfloats = <const uint16_t*>address_of(x)
        layer.args.ids = <const int32_t*>address_of(on_cpu)
        layer.args.weights = floats_of(weights)
        layer.args.out = <float*>address_of(out)
        if self.keep[1] is not None:
            layer.args.out_bfloats = <uint16_t*>address_of(self.keep[1])
        self.keep.append(bank)
        fill_expert_ops(&layer.args, layer.ops)
        self.worker.add(layer)

    def start(self) -> None:
        """Begin to answer."""
        cdef int64_t tokens = self.arrays[3].shape[0], num_bytes = 0
        cdef size_t i
        for i in range(self.layers.size()):
            num_bytes = max(num_bytes, place_expert_workspace(&self.layers[i].args, NULL, tokens, 0))
        shared, own = aligned(num_bytes), aligned(self.worker.own_bytes() * self.pool.num_threads)
        self.keep += [shared, own]
        for i in range(self.layers.size()):
            place_expert_workspace(&self.layers[i].args, <char*>address_of(shared), tokens, 0)
        self.started = True
        self.worker.start(<char*>address_of(own))

    @property
    def num_messages(self) -> int:
        """Messages answered so far."""
        return self.worker.num_messages()

    @property
    def busy_ns(self) -> int:
        """Nanoseconds from seeing a message to its answer, over all messages."""
        return self.worker.busy_ns()

    def stall(self, stalled: bool = True) -> None:
        """Answer nothing until told otherwise, as a worker does whose cores others use; for tests."""
        self.worker.stall(stalled)

    def close(self) -> None:
        """End the threads; a second call does nothing."""
        if self.worker != NULL:
            with nogil:
                self.worker.stop()

    def __dealloc__(self):
        if self.worker != NULL:
            with nogil:
                self.worker.stop()
            del self.worker
        cdef size_t i
        for i in range(self.layers.size()):
            free(self.layers[i])
