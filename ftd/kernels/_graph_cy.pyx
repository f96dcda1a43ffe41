# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""CpuGraph: one step as a program of C ops, recorded once, run with one call without the GIL.

The API, its checks and its meaning are ReferenceGraph's (graph_ref), which is also the oracle of its tests. Recording
fills C structs; a run checks the step's indices, copies its arrays and hands all ops to the pool at once.
"""

import numpy as np

from ftd.kernels.graph_ref import Buffer, Routing, check_pages
from ftd.kernels.route_topk_ref import check as check_router
from ftd.kernels.shapes import expect
from ftd.kernels.step import Limits

from libc.stdint cimport int32_t, int64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libcpp.vector cimport vector

from ftd.kernels._add_cy cimport AddArgs, add_fn
from ftd.kernels._attention_cy cimport AttentionArgs, attention_fn, attention_workspace_bytes
from ftd.kernels._dequantize_cy cimport fill_matrix
from ftd.kernels._embedding_cy cimport EmbeddingArgs, embedding_fn
from ftd.kernels._expert_ffn_cy cimport (
    NUM_EXPERT_OPS, ExpertFfnArgs, fill_expert_args, fill_expert_ops, place_expert_workspace,
)
from ftd.kernels._geglu_cy cimport GegluArgs, geglu_fn
from ftd.kernels._kv_store_cy cimport KvStoreArgs, fill_pages, kv_store_fn
from ftd.kernels._matmul_cy cimport (
    MatmulArgs, Product, QuantizeArgs, activation_bytes, has_integer_codes, matmul_fn, matmul_scratch_bytes,
    place_activations, quantize_fn,
)
from ftd.kernels._pool cimport Op, OpFn, Pool, ROWS_LOGITS, ROWS_TOKENS, run_ops
from ftd.kernels._rms_norm_cy cimport RmsNormArgs, rms_norm_fn
from ftd.kernels._rope_cy cimport RopeArgs, RopeTableArgs, rope_fn, rope_table_fn
from ftd.kernels._route_topk_cy cimport RouteTopkArgs, route_topk_fn
from ftd.kernels._select_logit_rows_cy cimport SelectLogitRowsArgs, select_logit_rows_fn
from ftd.kernels._step_cy cimport StepMemory, address_of, aligned, floats_of
from ftd.kernels._swiglu_cy cimport SwigluArgs, swiglu_fn


cdef class CpuGraph:
    """A recorded step; see ReferenceGraph. Owns its buffers; keeps weights and pages alive. One thread at a time."""

    cdef Pool _pool
    cdef int _parts
    cdef bint _fast
    cdef bint _finished
    cdef object _limits
    cdef dict _memory                # Buffer -> bytes of [max rows, width] floats
    cdef list _keep                  # arrays that ops point into
    cdef dict _rope_tables
    cdef dict _workspaces            # (heads, groups, channels) -> bytes
    cdef vector[void*] _structs      # args of all ops, freed with the graph
    cdef vector[Op] _ops
    cdef vector[QuantizeArgs*] _quantizes
    cdef vector[MatmulArgs*] _matmuls
    cdef vector[int64_t] _matmul_ks
    cdef vector[ExpertFfnArgs*] _experts
    cdef int64_t _expert_bytes       # of the workspace that all expert_ffn ops share
    cdef dict _routed                # Routing -> (ids, weights, uses)
    cdef int64_t _most_rows          # of any buffer
    cdef int64_t _activation_bytes
    cdef int64_t _scratch_bytes
    cdef StepMemory _step
    cdef int64_t _num_ids
    cdef int64_t _num_pages

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
        self._memory, self._keep, self._rope_tables, self._workspaces = {}, [], {}, {}
        self._routed = {}
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

    def embedding(self, out, weight, scale=1.0) -> None:
        """Record out = scale * weight[ids]."""
        self._expect(out, weight.shape[1], "tokens")
        cdef EmbeddingArgs* args = <EmbeddingArgs*>self._new(sizeof(EmbeddingArgs))
        fill_matrix(weight, &args.weight)
        args.out = self._data(out)
        args.width = out.width
        args.scale = scale
        self._num_ids = min(self._num_ids, weight.shape[0])
        self._keep.append(weight)
        self._record(embedding_fn(), args)

    cdef int _norm(self, object out, object x, object weight, float eps, int heads) except -1:
        if not eps >= 0.0:
            raise ValueError(f"eps must be at least 0, got {eps}")
        cdef RmsNormArgs* args = <RmsNormArgs*>self._new(sizeof(RmsNormArgs))
        args.x = self._data(x)
        args.weight = floats_of(self._vector("weight", weight, x.width // heads))
        args.out = self._data(out)
        args.width = x.width // heads
        args.eps = eps
        args.rows = _rows(x)
        args.heads = heads
        return self._record(rms_norm_fn(), args)

    def rms_norm(self, out, x, weight, eps: float) -> None:
        """Record out = rms_norm(x, weight, eps); out may be x."""
        self._expect(out, x.width, x.rows)
        self._expect(x, x.width, x.rows)
        self._norm(out, x, weight, eps, 1)

    def head_rms_norm(self, x, num_heads: int, weight, eps: float) -> None:
        """Record x = rms_norm of each head of x [rows, num_heads * C]; weight [C]."""
        self._expect(x, x.width, x.rows)
        if num_heads < 1 or x.width % num_heads:
            raise ValueError(f"width {x.width} is no multiple of {num_heads} heads")
        self._norm(x, x, weight, eps, num_heads)

    def add(self, out, x, scale=1.0) -> None:
        """Record out += scale * x."""
        self._expect(out, out.width, out.rows)
        self._expect(x, out.width, out.rows)
        cdef AddArgs* args = <AddArgs*>self._new(sizeof(AddArgs))
        args.x = args.out = self._data(out)
        args.y = self._data(x)
        args.scale = scale
        args.width = out.width
        args.rows = _rows(out)
        self._record(add_fn(), args)

    def linear(self, out, x, weight, bias=None) -> None:
        """Record out = x weight^T + bias."""
        self._products([(out, weight, bias)], x, False)

    def linears(self, products, x, num_exact=0) -> None:
        """Record several products of the same x, quantised once; the last num_exact take x as it is."""
        self._products(list(products), x, False, num_exact)

    def linear_add(self, out, x, weight) -> None:
        """Record out += x weight^T."""
        self._products([(out, weight, None)], x, True)

    cdef int _products(self, list products, object x, bint add, int num_exact=0) except -1:
        cdef Product* all_products = <Product*>self._new(max(1, len(products)) * sizeof(Product))
        cdef Product* product
        cdef MatmulArgs* args
        cdef QuantizeArgs* quantize
        cdef bint needs_codes = False
        self._expect(x, x.width, x.rows)
        for i, (out, weight, bias) in enumerate(products):
            self._expect(x, weight.shape[1], x.rows)
            self._expect(out, weight.shape[0], x.rows)
            if out is x:
                raise ValueError("the product of a buffer cannot go to the buffer itself")
            product = all_products + <int>i
            fill_matrix(weight, &product.weight)
            self._keep.append(weight)
            if bias is not None:
                product.bias = floats_of(self._vector("bias", bias, out.width))
            product.out = self._data(out)
            product.add = add
            product.exact = not (self._fast and has_integer_codes(product.weight))
            product.exact = product.exact or <int>i >= len(products) - num_exact
            needs_codes = needs_codes or not product.exact
        args = <MatmulArgs*>self._new(sizeof(MatmulArgs))
        args.products = all_products
        args.num_products = len(products)
        args.rows = _rows(x)
        args.x = self._data(x)
        if needs_codes:
            quantize = <QuantizeArgs*>self._new(sizeof(QuantizeArgs))
            quantize.x, quantize.k, quantize.rows = args.x, x.width, args.rows
            self._quantizes.push_back(quantize)
            self._activation_bytes = max(self._activation_bytes, activation_bytes(self._most_rows, x.width))
            self._record(quantize_fn(), quantize)
        self._matmuls.push_back(args)
        self._matmul_ks.push_back(x.width)
        self._scratch_bytes = max(self._scratch_bytes, (matmul_scratch_bytes(x.width) + 63) // 64 * 64)
        return self._record(matmul_fn(), args)

    def swiglu(self, out, gate, up) -> None:
        """Record out = silu(gate) * up; out may be gate."""
        for buffer in (out, gate, up):
            self._expect(buffer, gate.width, gate.rows)
        cdef SwigluArgs* args = <SwigluArgs*>self._new(sizeof(SwigluArgs))
        args.gate = self._data(gate)
        args.up = self._data(up)
        args.out = self._data(out)
        args.width = gate.width
        args.rows = _rows(gate)
        self._record(swiglu_fn(), args)

    def geglu(self, out, gate, up) -> None:
        """Record out = gelu(gate) * up; out may be gate."""
        for buffer in (out, gate, up):
            self._expect(buffer, gate.width, gate.rows)
        cdef GegluArgs* args = <GegluArgs*>self._new(sizeof(GegluArgs))
        args.gate = self._data(gate)
        args.up = self._data(up)
        args.out = self._data(out)
        args.width = gate.width
        args.rows = _rows(gate)
        self._record(geglu_fn(), args)

    cdef const float* _rope_table(self, object inv_freq, float scale) except NULL:
        """Return where the cosines and sines of a step go; records their making at their first use."""
        key = (inv_freq.tobytes(), scale)
        cdef RopeTableArgs* args
        table = self._rope_tables.get(key)
        if table is None:
            half = inv_freq.shape[0]
            table = aligned(4 * self._limits.max_tokens * max(1, 2 * half))
            self._rope_tables[key] = table
            args = <RopeTableArgs*>self._new(sizeof(RopeTableArgs))
            args.inv_freq = floats_of(self._vector("inv_freq", inv_freq, half))
            args.table = <float*>address_of(table)
            args.half = half
            args.scale = scale
            self._record(rope_table_fn(), args)
        return floats_of(table)

    def rope(self, x, num_heads: int, head_dim: int, inv_freq, scale=1.0) -> None:
        """Record x = rope(x) with the step's positions."""
        self._expect(x, num_heads * head_dim, "tokens")
        expect("inv_freq", inv_freq, "float32", ("C_rot/2",))
        if not 1 <= inv_freq.shape[0] <= head_dim // 2:
            raise ValueError(f"inv_freq rotates {2 * inv_freq.shape[0]} channels, a head has {head_dim}")
        cdef const float* table = self._rope_table(inv_freq, scale)
        cdef RopeArgs* args = <RopeArgs*>self._new(sizeof(RopeArgs))
        args.x = args.out = self._data(x)
        args.table = table
        args.heads = num_heads
        args.channels = head_dim
        args.half = inv_freq.shape[0]
        self._record(rope_fn(), args)

    def kv_store(self, k, v, k_pages, v_pages) -> None:
        """Record the step's keys and values going to their pages; the graph keeps the arrays alive."""
        self._expect_pages(k_pages, v_pages)
        groups, channels = k_pages.shape[1:3]
        self._expect(k, groups * channels, "tokens")
        self._expect(v, groups * channels, "tokens")
        cdef KvStoreArgs* args = <KvStoreArgs*>self._new(sizeof(KvStoreArgs))
        fill_pages(k_pages, v_pages, &args.k_pages, &args.v_pages, &args.page_type)
        args.k = self._data(k)
        args.v = self._data(v)
        args.groups = groups
        args.channels = channels
        self._record(kv_store_fn(), args)

    cdef void* _workspace(self, int heads, int groups, int channels) except NULL:
        """Return the workspace that all attention ops of one shape share."""
        key = (heads, groups, channels)
        if key not in self._workspaces:
            keys = self._limits.max_pages_per_sequence * self._limits.page_size
            self._workspaces[key] = aligned(
                attention_workspace_bytes(heads, groups, channels, keys, self._limits.max_sequences, self._parts)
            )
        return <void*>address_of(self._workspaces[key])

    def attention(self, out, q, k_pages, v_pages, num_heads: int, scale: float, window=0, sinks=None) -> None:
        """Record out = attention(q, pages) with the step's sequences."""
        self._expect_pages(k_pages, v_pages)
        groups, channels = k_pages.shape[1:3]
        self._expect(q, num_heads * channels, "tokens")
        self._expect(out, num_heads * channels, "tokens")
        if num_heads % groups:
            raise ValueError(f"query heads must be a multiple of key-value heads, got {num_heads} and {groups}")
        if window < 0:
            raise ValueError(f"window must be at least 0, got {window}")
        cdef AttentionArgs* args = <AttentionArgs*>self._new(sizeof(AttentionArgs))
        fill_pages(k_pages, v_pages, <void**>&args.k_pages, <void**>&args.v_pages, &args.page_type)
        args.q = self._data(q)
        args.out = self._data(out)
        if sinks is not None:
            args.sinks = floats_of(self._vector("sinks", sinks, num_heads))
        args.heads = num_heads
        args.groups = groups
        args.channels = channels
        args.window = window
        args.scale = scale
        args.workspace = self._workspace(num_heads, groups, channels)
        args.max_sequences = self._limits.max_sequences
        args.max_keys = self._limits.max_pages_per_sequence * self._limits.page_size
        self._record(attention_fn(), args)

    def route_topk(
        self, logits, num_chosen, scoring="softmax", renormalise=True, scale=1.0, bias=None, num_groups=1,
        top_groups=1, group_top=2,
    ):
        """Record the choice of experts by a router's logits; return the handle that expert_ffn takes."""
        self._expect(logits, logits.width, "tokens")
        example = np.empty((0, logits.width), np.float32)
        check_router(example, num_chosen, scoring, bias, num_groups, top_groups, group_top)
        rows = self._limits.max_tokens
        ids, weights = np.zeros((rows, num_chosen), np.int32), np.zeros((rows, num_chosen), np.float32)
        routing = Routing(logits.width, num_chosen)
        self._routed[routing] = ids, weights, np.zeros(logits.width + 1, np.int64)
        work = np.zeros((self._parts, 2 * logits.width), np.float32)
        self._keep.append(work)
        cdef RouteTopkArgs* args = <RouteTopkArgs*>self._new(sizeof(RouteTopkArgs))
        args.logits = self._data(logits)
        if bias is not None:
            args.bias = floats_of(self._vector("bias", bias, logits.width))
        args.ids = <int32_t*>address_of(ids)
        args.weights = <float*>address_of(weights)
        args.work = <float*>address_of(work)
        args.num_experts = logits.width
        args.num_chosen = num_chosen
        args.sigmoid = scoring == "sigmoid"
        args.renormalise = renormalise
        args.num_groups, args.top_groups, args.group_top = num_groups, top_groups, group_top
        args.scale = scale
        self._record(route_topk_fn(), args)
        return routing

    def expert_ffn(self, out, x, routing, bank, activation="silu", limit=7.0) -> None:
        """Record out = the weighted sum of what the chosen experts make of x; see expert_ffn_ref."""
        if routing not in self._routed:
            raise ValueError("the routing belongs to another graph")
        if routing.num_experts != bank.num_experts:
            raise ValueError(f"the router has {routing.num_experts} experts, the bank {bank.num_experts}")
        cdef Op ops[8]
        cdef int i
        cdef ExpertFfnArgs* args = <ExpertFfnArgs*>self._new(sizeof(ExpertFfnArgs))
        fill_expert_args(args, bank, routing.num_chosen, activation, limit, self._fast)
        self._expect(x, args.width, "tokens")
        self._expect(out, args.width, "tokens")
        self._keep.append(bank)
        ids, weights, uses = self._routed[routing]
        args.x = self._data(x)
        args.out = self._data(out)
        args.ids = <const int32_t*>address_of(ids)
        args.weights = floats_of(weights)
        args.uses = <int64_t*>address_of(uses)
        self._expert_bytes = max(
            self._expert_bytes, place_expert_workspace(args, NULL, self._limits.max_tokens, self._parts)
        )
        self._experts.push_back(args)
        fill_expert_ops(args, ops)
        for i in range(NUM_EXPERT_OPS):
            self._record(ops[i].run, ops[i].args)

    def routed(self, routing):
        """Return ids and weights [T, K] of the last step, valid until the next run."""
        ids, weights, _ = self._routed[routing]
        return ids[: self._step.step.num_tokens], weights[: self._step.step.num_tokens]

    def expert_uses(self, routing):
        """Return [E + 1]: tokens that each expert served in all runs; last, how often one was read."""
        return self._routed[routing][2]

    def select_logit_rows(self, out, x) -> None:
        """Record out = x[logit_rows]; out is a logit buffer."""
        self._expect(x, out.width, "tokens")
        self._expect(out, x.width, "logits")
        cdef SelectLogitRowsArgs* args = <SelectLogitRowsArgs*>self._new(sizeof(SelectLogitRowsArgs))
        args.x = self._data(x)
        args.out = self._data(out)
        args.width = x.width
        self._record(select_logit_rows_fn(), args)

    def finish(self) -> None:
        """Allocate the memory that products share; recording ends."""
        if self._finished:
            raise ValueError("the graph is finished")
        scratch = aligned(self._activation_bytes + self._parts * self._scratch_bytes + 64)
        self._keep.append(scratch)
        cdef char* start = <char*>address_of(scratch)
        cdef void* codes = start + self._parts * self._scratch_bytes
        cdef size_t i
        for i in range(self._quantizes.size()):
            self._quantizes[i].out = place_activations(codes, self._most_rows, self._quantizes[i].k)
        for i in range(self._matmuls.size()):
            self._matmuls[i].scratch = start
            self._matmuls[i].scratch_stride = self._scratch_bytes
            self._matmuls[i].activations = place_activations(codes, self._most_rows, self._matmul_ks[i])
        if self._experts.size():
            workspace = aligned(self._expert_bytes)
            self._keep.append(workspace)
            for i in range(self._experts.size()):
                place_expert_workspace(
                    self._experts[i], <char*>address_of(workspace), self._limits.max_tokens, self._parts
                )
        self._finished = True

    def run(self, ids, positions, kv_index, q_start, kv_len, page_table, logit_rows) -> None:
        """Run the program on one step; arguments and errors as ReferenceGraph.run."""
        if not self._finished:
            raise ValueError("finish() must come before run()")
        self._step.fill(
            (ids, positions, kv_index, q_start, kv_len, page_table, logit_rows), self._num_ids, self._num_pages
        )
        with nogil:
            run_ops(self._pool, self._ops.data(), <int32_t>self._ops.size(), &self._step.step)

    def view(self, buffer):
        """Return the rows of buffer of the last step: f32 [rows, width], valid until the next run."""
        if not self._finished:
            raise ValueError("finish() must come before view()")
        rows = self._step.step.num_tokens if buffer.rows == "tokens" else self._step.step.num_logits
        return self._memory[buffer].view(np.float32).reshape(-1, buffer.width)[:rows]

    @property
    def num_bytes(self) -> int:
        """Bytes of all buffers and of what products and attention share."""
        arrays = [*self._memory.values(), *self._rope_tables.values(), *self._workspaces.values()]
        shared = self._activation_bytes + self._parts * self._scratch_bytes + self._expert_bytes
        return sum(array.nbytes for array in arrays) + shared


cdef int32_t _rows(object buffer):
    return ROWS_LOGITS if buffer.rows == "logits" else ROWS_TOKENS

