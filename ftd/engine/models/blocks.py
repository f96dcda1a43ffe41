"""Blocks that model families are made of, recorded through the graph API.

All layers share one set of buffers; ``x`` is the residual stream. A family calls ``embed``, then
``attention`` and ``mlp`` for each layer, then ``head``. Weights are looked up by their Hugging Face names,
and each look-up checks presence and shape, so what a family records is what it needs.
"""

from dataclasses import dataclass
from typing import Any

from ftd.engine import rope
from ftd.engine.graphs import Floats, Graph
from ftd.engine.kv_pool import KvPool
from ftd.engine.model_config import ModelConfig
from ftd.engine.weights import Weights


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where a step leaves its results: ``hidden`` [T, D] after the last norm, ``logits`` [num_logits, V]."""

    hidden: Any
    logits: Any


class Blocks:
    """Records the shared blocks of decoder models into ``graph``."""

    def __init__(self, config: ModelConfig, graph: Graph, weights: Weights, kv_pool: KvPool) -> None:
        self.config = config
        self.graph = graph
        self.weights = weights
        self.kv_pool = kv_pool
        self.inv_freq, self.rope_scale = rope.frequencies(config.rope, config.max_context_tokens)
        self.q_size = config.num_heads * config.head_dim
        self.kv_size = config.num_kv_heads * config.head_dim
        self.x = graph.buffer(config.hidden_size)
        self.normed = graph.buffer(config.hidden_size)
        self.q, self.mixed = graph.buffer(self.q_size), graph.buffer(self.q_size)
        self.k, self.v = graph.buffer(self.kv_size), graph.buffer(self.kv_size)
        self.gate = graph.buffer(config.intermediate_size)
        self.up = graph.buffer(config.intermediate_size)

    def embed(self) -> None:
        """x = embedding of the step's ids."""
        self.graph.embedding(self.x, self._embedding_weight())

    def attention(self, layer: int, *, qkv_bias: bool = False, qk_norm: bool = False) -> None:
        """x += o_proj(attention(norm(x))); biases on q, k, v and norms on the heads of q and k if asked."""
        config, graph, weights = self.config, self.graph, self.weights
        prefix = f"model.layers.{layer}"
        self._norm(self.normed, f"{prefix}.input_layernorm.weight")
        sizes = {"q": self.q_size, "k": self.kv_size, "v": self.kv_size}
        outs = {"q": self.q, "k": self.k, "v": self.v}
        products: list[tuple[Any, Any, Floats | None]] = []
        for part, size in sizes.items():
            name = f"{prefix}.self_attn.{part}_proj"
            bias = weights.vector(f"{name}.bias", size) if qkv_bias or config.attention_bias else None
            products.append((outs[part], weights.matrix(f"{name}.weight", size, config.hidden_size), bias))
        graph.linears(products, self.normed)
        for part, heads in (("q", config.num_heads), ("k", config.num_kv_heads)):
            if qk_norm:
                weight = weights.vector(f"{prefix}.self_attn.{part}_norm.weight", config.head_dim)
                graph.head_rms_norm(outs[part], heads, weight, config.rms_norm_eps)
            graph.rope(outs[part], heads, config.head_dim, self.inv_freq, self.rope_scale)
        k_pages, v_pages = self.kv_pool.k[layer], self.kv_pool.v[layer]
        graph.kv_store(self.k, self.v, k_pages, v_pages)
        scale = config.head_dim**-0.5
        graph.attention(
            self.mixed, self.q, k_pages, v_pages, config.num_heads, scale, window=config.windows[layer]
        )
        self._output(f"{prefix}.self_attn.o_proj")

    def mlp(self, layer: int) -> None:
        """x += down(silu(gate(norm(x))) * up(norm(x)))."""
        config, graph, weights = self.config, self.graph, self.weights
        prefix = f"model.layers.{layer}"
        self._norm(self.normed, f"{prefix}.post_attention_layernorm.weight")
        inner, hidden = config.intermediate_size, config.hidden_size
        gate = weights.matrix(f"{prefix}.mlp.gate_proj.weight", inner, hidden)
        up = weights.matrix(f"{prefix}.mlp.up_proj.weight", inner, hidden)
        graph.linears([(self.gate, gate, None), (self.up, up, None)], self.normed)
        graph.swiglu(self.gate, self.gate, self.up)
        graph.linear_add(self.x, self.gate, weights.matrix(f"{prefix}.mlp.down_proj.weight", hidden, inner))

    def head(self) -> Outputs:
        """Return the hidden states after the last norm and the logits of the rows that the step asks for."""
        config, graph = self.config, self.graph
        hidden = graph.buffer(config.hidden_size)
        self._norm(hidden, "model.norm.weight")
        selected = graph.logit_buffer(config.hidden_size)
        graph.select_logit_rows(selected, hidden)
        logits = graph.logit_buffer(config.vocab_size)
        if config.tie_word_embeddings:
            weight = self._embedding_weight()
        else:
            weight = self.weights.matrix("lm_head.weight", config.vocab_size, config.hidden_size)
        graph.linear(logits, selected, weight)
        return Outputs(hidden, logits)

    def _embedding_weight(self) -> Any:
        return self.weights.matrix(
            "model.embed_tokens.weight", self.config.vocab_size, self.config.hidden_size
        )

    def _norm(self, out: Any, name: str) -> None:
        weight = self.weights.vector(name, self.config.hidden_size)
        self.graph.rms_norm(out, self.x, weight, self.config.rms_norm_eps)

    def _output(self, name: str) -> None:
        """x += o_proj(mixed)."""
        hidden = self.config.hidden_size
        weight = self.weights.matrix(f"{name}.weight", hidden, self.q_size)
        if not (self.config.attention_bias and f"{name}.bias" in self.weights):
            self.graph.linear_add(self.x, self.mixed, weight)
            return
        self.graph.linear(self.normed, self.mixed, weight, self.weights.vector(f"{name}.bias", hidden))
        self.graph.add(self.x, self.normed)
