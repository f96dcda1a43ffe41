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
        self.rope = rope.frequencies(config.rope, config.max_context_tokens)
        local = config.local_rope
        self.local_rope = rope.frequencies(local, config.max_context_tokens) if local else self.rope
        self.q_size = config.num_heads * config.head_dim
        self.kv_size = config.num_kv_heads * config.head_dim
        self.x = graph.buffer(config.hidden_size)
        self.normed = graph.buffer(config.hidden_size)
        self.q, self.mixed = graph.buffer(self.q_size), graph.buffer(self.q_size)
        self.k, self.v = graph.buffer(self.kv_size), graph.buffer(self.kv_size)
        self.gate = graph.buffer(config.intermediate_size)
        self.up = graph.buffer(config.intermediate_size)

    def embed(self, scale: float = 1.0) -> None:
        """x = embedding of the step's ids, times ``scale``."""
        self.graph.embedding(self.x, self._embedding_weight(), scale)

    def attention(
        self, layer: int, *, qkv_bias: bool = False, qk_norm: bool = False, post_norm: str | None = None
    ) -> None:
        """x += o_proj(attention(norm(x))).

        If asked, q, k and v have biases, the heads of q and k are normalised, and so is what is added to x.
        """
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
        inv_freq, rope_scale = self.local_rope if config.windows[layer] else self.rope
        for part, heads in (("q", config.num_heads), ("k", config.num_kv_heads)):
            if qk_norm:
                weight = weights.vector(f"{prefix}.self_attn.{part}_norm.weight", config.head_dim)
                graph.head_rms_norm(outs[part], heads, weight, config.rms_norm_eps)
            graph.rope(outs[part], heads, config.head_dim, inv_freq, rope_scale)
        k_pages, v_pages = self.kv_pool.k[layer], self.kv_pool.v[layer]
        graph.kv_store(self.k, self.v, k_pages, v_pages)
        graph.attention(
            self.mixed,
            self.q,
            k_pages,
            v_pages,
            config.num_heads,
            config.attention_scale,
            window=config.windows[layer],
        )
        has_bias = config.attention_bias and f"{prefix}.self_attn.o_proj.bias" in weights
        self._add_product(
            f"{prefix}.self_attn.o_proj", self.mixed, has_bias, post_norm and f"{prefix}.{post_norm}.weight"
        )

    def mlp(
        self, layer: int, *, norm: str = "post_attention_layernorm", post_norm: str | None = None
    ) -> None:
        """x += down(act(gate(norm(x))) * up(norm(x))); what is added to x is normalised if asked."""
        config, graph, weights = self.config, self.graph, self.weights
        prefix = f"model.layers.{layer}"
        self._norm(self.normed, f"{prefix}.{norm}.weight")
        inner, hidden = config.intermediate_size, config.hidden_size
        gate = weights.matrix(f"{prefix}.mlp.gate_proj.weight", inner, hidden)
        up = weights.matrix(f"{prefix}.mlp.up_proj.weight", inner, hidden)
        graph.linears([(self.gate, gate, None), (self.up, up, None)], self.normed)
        gated = graph.swiglu if config.activation == "silu" else graph.geglu
        gated(self.gate, self.gate, self.up)
        self._add_product(
            f"{prefix}.mlp.down_proj", self.gate, False, post_norm and f"{prefix}.{post_norm}.weight"
        )

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

    def _add_product(self, name: str, source: Any, has_bias: bool, norm: str | None) -> None:
        """x += norm(source W^T + bias)."""
        hidden = self.config.hidden_size
        weight = self.weights.matrix(f"{name}.weight", hidden, source.width)
        if not has_bias and norm is None:
            self.graph.linear_add(self.x, source, weight)
            return
        bias = self.weights.vector(f"{name}.bias", hidden) if has_bias else None
        self.graph.linear(self.normed, source, weight, bias)
        if norm is not None:
            norm_weight = self.weights.vector(norm, hidden)
            self.graph.rms_norm(self.normed, self.normed, norm_weight, self.config.rms_norm_eps)
        self.graph.add(self.x, self.normed)
