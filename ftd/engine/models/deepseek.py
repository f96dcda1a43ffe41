"""DeepSeek V2, V3, V3.2 and GLM 5: latent attention, dense layers, then experts in groups and a shared one.

kv_b takes a latent to the keys and values of all heads. It is never applied to the context: a query goes
through its keys' part into the space of latents, attends there, and what it mixed comes back through the
values' part. In sparse attention an indexer selects the keys that a token sees.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ftd.engine.graphs import Floats
from ftd.engine.latent_config import IndexConfig
from ftd.engine.models.blocks import Blocks, Outputs
from ftd.errors import Unsupported
from ftd.kernels.quant import QuantMatrix
from ftd.kernels.reference_latent import HeadRows

# The norms of what is compressed have an epsilon of their own, whatever the config says of the others
COMPRESSED_EPS = 1e-6


def record(blocks: Blocks) -> Outputs:
    """Record one step of the model."""
    blocks.embed()
    attention = _Attention(blocks)
    for layer in range(blocks.config.num_layers):
        attention.record(layer)
        blocks.experts(layer)
    return blocks.head()


class _Attention:
    """Records x += o_proj(attention(norm(x))); its buffers serve all layers."""

    def __init__(self, blocks: Blocks) -> None:
        graph, latent = blocks.graph, blocks.config.latent
        assert latent is not None
        self._blocks, self._latent = blocks, latent
        heads = blocks.config.num_heads
        self._q_compressed = graph.buffer(latent.q_rank) if latent.q_rank else None
        self._q = graph.buffer(heads * latent.query_size)
        self._queries = graph.buffer(heads * latent.row_size)
        self._compressed, self._row = graph.buffer(latent.row_size), graph.buffer(latent.row_size)
        self._mixed = graph.buffer(heads * latent.kv_rank)
        self._values = graph.buffer(heads * latent.value_dim)
        self._selection: Any = None
        self._index_buffers: tuple[Any, Any, Any] | None = None
        if latent.index is not None:
            sizes = (
                latent.index.num_heads * latent.index.head_dim,
                latent.index.head_dim,
                latent.index.num_heads,
            )
            q, k, weights = (graph.buffer(size) for size in sizes)
            self._index_buffers = q, k, weights

    def record(self, layer: int) -> None:
        """Record one layer's attention."""
        blocks, latent = self._blocks, self._latent
        graph, weights, config = blocks.graph, blocks.weights, blocks.config
        prefix, heads, hidden = f"model.layers.{layer}", config.num_heads, config.hidden_size
        name = f"{prefix}.self_attn"
        blocks.norm(blocks.normed, f"{prefix}.input_layernorm.weight")
        self._record_query(name)
        compress = f"{name}.kv_a_proj_with_mqa"
        product = (
            self._compressed,
            weights.matrix(f"{compress}.weight", latent.row_size, hidden),
            self._bias(compress, latent.row_size),
        )
        # In f32 also on the fast path, as K and V of other models: every later token reads their errors
        graph.linears([product], blocks.normed, num_exact=1)
        norm = weights.vector(f"{name}.kv_a_layernorm.weight", latent.kv_rank)
        graph.latent_norm(self._row, self._compressed, norm, COMPRESSED_EPS, latent.interleaved)
        inv_freq, scale = blocks.rope
        graph.rope(self._row, 1, latent.row_size, inv_freq, scale, first=latent.kv_rank)
        pages = blocks.kv_pool.k[layer]
        graph.latent_store(self._row, pages)
        self._record_absorbed(name)
        graph.rope(self._queries, heads, latent.row_size, inv_freq, scale, first=latent.kv_rank)
        if latent.index is not None and latent.index.layers[layer]:
            self._record_index(layer, latent.index)
        graph.latent_attention(
            self._mixed, self._queries, pages, heads, latent.kv_rank, latent.scale, self._selection
        )
        self._record_values(name)
        blocks.add_product(f"{name}.o_proj", self._values, f"{name}.o_proj.bias" in weights)

    def _record_query(self, name: str) -> None:
        """q = q_proj(normed), or q_b(norm(q_a(normed)))."""
        blocks, latent = self._blocks, self._latent
        graph, weights, config = blocks.graph, blocks.weights, blocks.config
        if self._q_compressed is None:
            weight = weights.matrix(f"{name}.q_proj.weight", self._q.width, config.hidden_size)
            graph.linear(self._q, blocks.normed, weight)
            return
        weight = weights.matrix(f"{name}.q_a_proj.weight", latent.q_rank, config.hidden_size)
        graph.linear(self._q_compressed, blocks.normed, weight, self._bias(f"{name}.q_a_proj", latent.q_rank))
        norm = weights.vector(f"{name}.q_a_layernorm.weight", latent.q_rank)
        graph.rms_norm(self._q_compressed, self._q_compressed, norm, COMPRESSED_EPS)
        weight = weights.matrix(f"{name}.q_b_proj.weight", self._q.width, latent.q_rank)
        graph.linear(self._q, self._q_compressed, weight)

    def _record_index(self, layer: int, index: IndexConfig) -> None:
        """Select the keys that each token sees in this layer, and in those after it that have no indexer."""
        assert self._index_buffers is not None
        blocks, latent, (q, k, weight_of) = self._blocks, self._latent, self._index_buffers
        graph, weights, hidden = blocks.graph, blocks.weights, blocks.config.hidden_size
        name = f"model.layers.{layer}.self_attn.indexer"
        order = np.arange(index.head_dim)
        if index.interleaved:  # the same order of channels in queries and keys changes no score
            rotated = order[: latent.rope_dim]
            order[: latent.rope_dim] = np.concatenate([rotated[0::2], rotated[1::2]])
        matrix = weights.matrix(f"{name}.wq_b.weight", q.width, latent.q_rank)
        graph.linears([(q, _reordered(matrix, order), None)], self._q_compressed, num_exact=1)
        matrix = weights.matrix(f"{name}.wk.weight", k.width, hidden)
        importance = weights.matrix(f"{name}.weights_proj.weight", weight_of.width, hidden)
        graph.linears(
            [(k, _reordered(matrix, order), None), (weight_of, importance, None)], blocks.normed, num_exact=2
        )
        norm, bias = (weights.vector(f"{name}.k_norm.{part}", k.width)[order] for part in ("weight", "bias"))
        graph.layer_norm(k, k, norm, bias, COMPRESSED_EPS)
        inv_freq, scale = blocks.rope
        graph.rope(q, index.num_heads, index.head_dim, inv_freq, scale)
        graph.rope(k, 1, index.head_dim, inv_freq, scale)
        pages = blocks.kv_pool.index[layer]
        graph.latent_store(k, pages)
        self._selection = graph.index_select(q, weight_of, pages, index.count, self._selection)

    def _record_absorbed(self, name: str) -> None:
        """queries = q through the keys' part of kv_b, and the part that rotates."""
        latent, heads, weights = self._latent, self._blocks.config.num_heads, self._blocks.weights
        which = HeadRows(tail=latent.rope_dim, interleaved=latent.interleaved)
        if f"{name}.k_b_proj.weight" in weights:
            weight = weights.matrix(f"{name}.k_b_proj.weight", heads * latent.kv_rank, latent.nope_dim)
        else:
            weight = self._kv_b(name)
            which = HeadRows(which.tail, which.interleaved, rows=latent.nope_dim, transposed=True)
        self._blocks.graph.head_linear(self._queries, self._q, heads, weight, which)

    def _record_values(self, name: str) -> None:
        """values = mixed latents through the values' part of kv_b."""
        latent, heads, weights = self._latent, self._blocks.config.num_heads, self._blocks.weights
        which = HeadRows()
        if f"{name}.v_b_proj.weight" in weights:
            weight = weights.matrix(f"{name}.v_b_proj.weight", heads * latent.value_dim, latent.kv_rank)
        else:
            weight, which = self._kv_b(name), HeadRows(first=latent.nope_dim)
        self._blocks.graph.head_linear(self._values, self._mixed, heads, weight, which)

    def _kv_b(self, name: str) -> QuantMatrix:
        latent, heads = self._latent, self._blocks.config.num_heads
        rows = heads * (latent.nope_dim + latent.value_dim)
        return self._blocks.weights.matrix(f"{name}.kv_b_proj.weight", rows, latent.kv_rank)

    def _bias(self, name: str, size: int) -> Floats | None:
        weights = self._blocks.weights
        return weights.vector(f"{name}.bias", size) if f"{name}.bias" in weights else None


def _reordered(matrix: QuantMatrix, order: NDArray[np.int64]) -> QuantMatrix:
    """Return ``matrix`` with the rows of each head in ``order``; scales of whole heads stay."""
    rows, heads = matrix.shape[0], matrix.shape[0] // len(order)
    if (order == np.arange(len(order))).all():
        return matrix
    places = (np.arange(heads)[:, None] * len(order) + order).reshape(-1)
    planes = []
    for plane in matrix.planes:
        if len(plane) != rows and len(order) % (rows // len(plane)):
            raise Unsupported(f"an indexer of format {matrix.format} with heads of {len(order)} channels")
        planes.append(np.ascontiguousarray(plane[places]) if len(plane) == rows else plane)
    return QuantMatrix(matrix.format, matrix.shape, tuple(planes))
