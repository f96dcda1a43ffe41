# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""CpuGraph: one step as a program of C ops, recorded once, run with one call without the GIL.

The API, its checks and its meaning are ReferenceGraph's (reference_graph), which is also the oracle of its tests. Recording
fills C structs; a run checks the step's indices, copies its arrays and hands all ops to the pool at once.
"""

from ftd.kernels.shapes import expect

from libc.stdint cimport int32_t, int64_t
from libcpp.vector cimport vector

from ftd.kernels._add_cy cimport AddArgs, add_fn
from ftd.kernels._attention_cy cimport AttentionArgs, attention_fn, attention_workspace_bytes
from ftd.kernels._dequantize_cy cimport fill_matrix
from ftd.kernels._embedding_cy cimport EmbeddingArgs, embedding_fn
from ftd.kernels._geglu_cy cimport GegluArgs, geglu_fn
from ftd.kernels._graph_latent_cy cimport LatentOps
from ftd.kernels._kv_store_cy cimport KvStoreArgs, fill_pages, kv_store_fn
from ftd.kernels._matmul_cy cimport (
    MatmulArgs, Product, QuantizeArgs, activation_bytes, has_integer_codes, matmul_fn, matmul_scratch_bytes,
    place_activations, quantize_fn, split_fn, split_matmul_fn, takes_split,
)
from ftd.kernels._pool cimport current_isa
from ftd.kernels._recorder_cy cimport rows_of
from ftd.kernels._rms_norm_cy cimport RmsNormArgs, rms_norm_fn
from ftd.kernels._rope_cy cimport RopeArgs, RopeTableArgs, rope_fn, rope_table_fn
from ftd.kernels._select_logit_rows_cy cimport SelectLogitRowsArgs, select_logit_rows_fn
from ftd.kernels._sigmoid_gate_cy cimport SigmoidGateArgs, sigmoid_gate_fn
from ftd.kernels._step_cy cimport address_of, aligned, floats_of
from ftd.kernels._swiglu_cy cimport SwigluArgs, swiglu_fn


# Widest row that one thread works on sooner than all threads meet: moved or normalised, quantised, through exp.
cdef int64_t LIGHT_ROW = 8192, LIGHT_QUANTIZE = 4096, LIGHT_EXP = 2048


cdef class CpuGraph(LatentOps):
    """A recorded step; see ReferenceGraph. Owns its buffers; keeps weights and pages alive. One thread at a time."""

    cdef dict _rope_tables
    cdef dict _workspaces            # (heads, groups, channels) -> bytes
    cdef vector[QuantizeArgs*] _quantizes
    cdef vector[MatmulArgs*] _matmuls
    cdef vector[int64_t] _matmul_ks
    cdef int64_t _activation_bytes
    cdef int64_t _scratch_bytes
    cdef int32_t _isa                # of its ops

    def __init__(self, pool=None, **limits):
        super().__init__(pool, **limits)
        self._rope_tables, self._workspaces = {}, {}
        self._isa = current_isa()

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
        self._light(out.width <= LIGHT_ROW)

    cdef int _norm(self, object out, object x, object weight, float eps, int heads) except -1:
        if not eps >= 0.0:
            raise ValueError(f"eps must be at least 0, got {eps}")
        cdef RmsNormArgs* args = <RmsNormArgs*>self._new(sizeof(RmsNormArgs))
        args.x = self._data(x)
        args.weight = floats_of(self._vector("weight", weight, x.width // heads))
        args.out = self._data(out)
        args.width = x.width // heads
        args.eps = eps
        args.rows = rows_of(x)
        args.heads = heads
        self._record(rms_norm_fn(), args)
        self._light(x.width <= LIGHT_ROW)
        return 0

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
        args.rows = rows_of(out)
        self._record(add_fn(), args)
        self._light(out.width <= LIGHT_ROW)

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
        cdef bint needs_codes = False, split = self._fast and len(products) > 0
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
            split = split and takes_split(product.weight, self._isa)
        args = <MatmulArgs*>self._new(sizeof(MatmulArgs))
        args.products = all_products
        args.num_products = len(products)
        args.rows = rows_of(x)
        args.x = self._data(x)
        if needs_codes or split:
            quantize = <QuantizeArgs*>self._new(sizeof(QuantizeArgs))
            quantize.x, quantize.k, quantize.rows = args.x, x.width, args.rows
            self._quantizes.push_back(quantize)
            self._activation_bytes = max(self._activation_bytes, activation_bytes(self._most_rows, x.width, self._isa))
            self._record(split_fn() if split else quantize_fn(), quantize)
            if split:
                self._needless()
            else:
                self._light(x.width <= LIGHT_QUANTIZE)
        self._matmuls.push_back(args)
        self._matmul_ks.push_back(x.width)
        self._scratch_bytes = max(self._scratch_bytes, (matmul_scratch_bytes(x.width, self._isa) + 63) // 64 * 64)
        return self._record(split_matmul_fn(2) if split else matmul_fn(), args)

    def swiglu(self, out, gate, up) -> None:
        """Record out = silu(gate) * up; out may be gate."""
        for buffer in (out, gate, up):
            self._expect(buffer, gate.width, gate.rows)
        cdef SwigluArgs* args = <SwigluArgs*>self._new(sizeof(SwigluArgs))
        args.gate = self._data(gate)
        args.up = self._data(up)
        args.out = self._data(out)
        args.width = gate.width
        args.rows = rows_of(gate)
        self._record(swiglu_fn(), args)
        self._light(gate.width <= LIGHT_EXP)

    def geglu(self, out, gate, up) -> None:
        """Record out = gelu(gate) * up; out may be gate."""
        for buffer in (out, gate, up):
            self._expect(buffer, gate.width, gate.rows)
        cdef GegluArgs* args = <GegluArgs*>self._new(sizeof(GegluArgs))
        args.gate = self._data(gate)
        args.up = self._data(up)
        args.out = self._data(out)
        args.width = gate.width
        args.rows = rows_of(gate)
        self._record(geglu_fn(), args)
        self._light(gate.width <= LIGHT_EXP)

    def sigmoid_gate(self, out, x, gate) -> None:
        """Record out = x * sigmoid(gate); out may be x or gate."""
        for buffer in (out, x, gate):
            self._expect(buffer, x.width, x.rows)
        cdef SigmoidGateArgs* args = <SigmoidGateArgs*>self._new(sizeof(SigmoidGateArgs))
        args.x = self._data(x)
        args.gate = self._data(gate)
        args.out = self._data(out)
        args.width = x.width
        args.rows = rows_of(x)
        self._record(sigmoid_gate_fn(), args)
        self._light(x.width <= LIGHT_EXP)

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
            self._light(half <= LIGHT_ROW)
        return floats_of(table)

    def rope(self, x, num_heads: int, head_dim: int, inv_freq, scale=1.0, first=0) -> None:
        """Record x = rope(x) with the step's positions; channels before first of a head stay."""
        self._expect(x, num_heads * head_dim, "tokens")
        expect("inv_freq", inv_freq, "float32", ("C_rot/2",))
        if first < 0 or not 1 <= inv_freq.shape[0] <= (head_dim - first) // 2:
            raise ValueError(f"inv_freq rotates {2 * inv_freq.shape[0]} channels, a head has {head_dim - first}")
        cdef const float* table = self._rope_table(inv_freq, scale)
        cdef RopeArgs* args = <RopeArgs*>self._new(sizeof(RopeArgs))
        args.x = args.out = self._data(x) + <int>first
        args.table = table
        args.heads = num_heads
        args.channels = head_dim
        args.half = inv_freq.shape[0]
        self._record(rope_fn(), args)
        self._light(x.width <= LIGHT_ROW)

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
        self._light(k.width <= LIGHT_ROW)

    cdef void* _workspace(self, int heads, int groups, int channels) except NULL:
        """Return the workspace that all attention ops of one shape share."""
        key = (heads, groups, channels)
        if key not in self._workspaces:
            keys = self._limits.max_pages_per_sequence * self._limits.page_size
            self._workspaces[key] = aligned(
                attention_workspace_bytes(heads, groups, channels, keys, self._limits.max_sequences, self._parts)
            )
        return <void*>address_of(self._workspaces[key])

    def attention(
        self, out, q, k_pages, v_pages, num_heads: int, scale: float, window=0, sinks=None, causal=True
    ) -> None:
        """Record out = attention(q, pages) with the step's sequences."""
        self._expect_pages(k_pages, v_pages)
        groups, channels = k_pages.shape[1:3]
        self._expect(q, num_heads * channels, "tokens")
        self._expect(out, num_heads * channels, "tokens")
        if num_heads % groups:
            raise ValueError(f"query heads must be a multiple of key-value heads, got {num_heads} and {groups}")
        if window < 0:
            raise ValueError(f"window must be at least 0, got {window}")
        if window and not causal:
            raise ValueError(f"attention in both directions has no window, got {window}")
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
        args.bidirectional = not causal
        args.scale = scale
        args.workspace = self._workspace(num_heads, groups, channels)
        args.max_sequences = self._limits.max_sequences
        args.max_keys = self._limits.max_pages_per_sequence * self._limits.page_size
        self._record(attention_fn(), args)

    def select_logit_rows(self, out, x) -> None:
        """Record out = x[logit_rows]; out is a logit buffer."""
        self._expect(x, out.width, "tokens")
        self._expect(out, x.width, "logits")
        cdef SelectLogitRowsArgs* args = <SelectLogitRowsArgs*>self._new(sizeof(SelectLogitRowsArgs))
        args.x = self._data(x)
        args.out = self._data(out)
        args.width = x.width
        self._record(select_logit_rows_fn(), args)
        self._light(x.width <= LIGHT_ROW)

    def finish(self) -> None:
        """Allocate the memory that products share; recording ends."""
        super().finish()
        scratch = aligned(self._activation_bytes + self._parts * self._scratch_bytes + 64)
        self._keep.append(scratch)
        cdef char* start = <char*>address_of(scratch)
        cdef void* codes = start + self._parts * self._scratch_bytes
        cdef size_t i
        for i in range(self._quantizes.size()):
            self._quantizes[i].out = place_activations(codes, self._most_rows, self._quantizes[i].k, self._isa)
        for i in range(self._matmuls.size()):
            self._matmuls[i].scratch = start
            self._matmuls[i].scratch_stride = self._scratch_bytes
            self._matmuls[i].activations = place_activations(codes, self._most_rows, self._matmul_ks[i], self._isa)

    @property
    def num_bytes(self) -> int:
        """Bytes of all buffers and of what products, attention and other ops share."""
        arrays = [*self._rope_tables.values(), *self._workspaces.values()]
        shared = self._activation_bytes + self._parts * self._scratch_bytes
        return super().num_bytes + sum(array.nbytes for array in arrays) + shared
