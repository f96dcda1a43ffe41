"""Blocks that model families are made of, recorded through the graph API.

All layers share one set of buffers; ``x`` is the residual stream. A family calls ``embed``, then
``attention`` and ``mlp`` or ``experts`` for each layer, then ``head``. Weights are looked up by their
Hugging Face names, and each look-up checks presence and shape, so what a family records is what it needs.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ftd.engine import rope
from ftd.engine.graphs import Floats, Graph
from ftd.engine.kv_pool import KvPool
from ftd.engine.model_config import ModelConfig
from ftd.engine.state_pool import StatePool
from ftd.engine.weights import Weights
from ftd.kernels.quant import ExpertBank

# K and V, the last two products, in f32 also on the fast path: every later token reads their errors, and they
# are few of the weights. On SmolLM2 Q4_1 it takes the KL divergence from 0.00119 to 0.00100, and moved a near
# tie by 0.67 nats. Output head or down projections from floats moved it by 0.01, for up to half the speed.
_NUM_EXACT = 2


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where a step leaves its results: ``hidden`` [T, D] after the last norm, ``logits`` [num_logits, V].

    An encoder has no logits: None.
    """

    hidden: Any
    logits: Any


class Blocks:
    """Records the shared blocks of decoder models into ``graph``."""

    def __init__(
        self,
        config: ModelConfig,
        graph: Graph,
        weights: Weights,
        kv_pool: KvPool,
        state_pool: StatePool | None = None,
    ) -> None:
        self.config = config
        self.graph = graph
        self.weights = weights
        self.kv_pool = kv_pool
        self.state_pool = state_pool
        self.rope = rope.frequencies(config.rope, config.max_context_tokens)
        local = config.local_rope
        self.local_rope = rope.frequencies(local, config.max_context_tokens) if local else self.rope
        self.q_size = config.num_heads * config.head_dim
        self.kv_size = config.num_kv_heads * config.head_dim
        self.x = graph.buffer(config.hidden_size)
        self.normed = graph.buffer(config.hidden_size)
        self.q, self.mixed = graph.buffer(self.q_size), graph.buffer(self.q_size)
        self.k, self.v = graph.buffer(self.kv_size), graph.buffer(self.kv_size)
        self._gate: Any = None
        self.routings: dict[int, Any] = {}
        self._mlp_buffers: dict[int, tuple[Any, Any]] = {}
        self._expert_buffers: tuple[Any, Any] | None = None

    def embed(self, scale: float | None = None) -> None:
        """x = embedding of the step's ids, times ``scale`` or what the config says."""
        scale = self.config.embedding_scale if scale is None else scale
        self.graph.embedding(self.x, self._embedding_weight(), scale)

    def attention(
        self,
        layer: int,
        *,
        qkv_bias: bool = False,
        qk_norm: bool = False,
        whole_norm: bool = False,
        sinks: bool = False,
        gated: bool = False,
        post_norm: str | None = None,
    ) -> None:
        """x += o_proj(attention(norm(x))).

        If asked, q, k and v have biases, q and k are normalised (each head, or all heads as one), softmax has
        a sink in each head, the heads' results pass a gate, and what is added to x is normalised.
        """
        config, graph, weights = self.config, self.graph, self.weights
        prefix = f"model.layers.{layer}"
        self.norm(self.normed, f"{prefix}.input_layernorm.weight")
        sizes = {"q": self.q_size, "k": self.kv_size, "v": self.kv_size}
        outs = {"q": self.q, "k": self.k, "v": self.v}
        products: list[tuple[Any, Any, Floats | None]] = []
        for part, size in sizes.items():
            name = f"{prefix}.self_attn.{part}_proj"
            bias = weights.vector(f"{name}.bias", size) if qkv_bias or config.attention_bias else None
            products.append((outs[part], weights.matrix(f"{name}.weight", size, config.hidden_size), bias))
        if gated:
            self._gate = self._gate or graph.buffer(self.q_size)
            gate = weights.matrix(f"{prefix}.self_attn.gate_proj.weight", self.q_size, config.hidden_size)
            products.insert(0, (self._gate, gate, None))
        graph.linears(products, self.normed, num_exact=_NUM_EXACT)
        inv_freq, rope_scale = self.local_rope if config.windows[layer] else self.rope
        for part, heads in (("q", config.num_heads), ("k", config.num_kv_heads)):
            if qk_norm:
                weight = weights.vector(f"{prefix}.self_attn.{part}_norm.weight", config.head_dim)
                graph.head_rms_norm(outs[part], heads, weight, config.rms_norm_eps)
            if whole_norm:
                weight = weights.vector(f"{prefix}.self_attn.{part}_norm.weight", sizes[part])
                graph.rms_norm(outs[part], outs[part], weight, config.rms_norm_eps)
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
            sinks=weights.vector(f"{prefix}.self_attn.sinks", config.num_heads) if sinks else None,
        )
        if gated:
            graph.sigmoid_gate(self.mixed, self.mixed, self._gate)
        has_bias = (qkv_bias or config.attention_bias) and f"{prefix}.self_attn.o_proj.bias" in weights
        self.add_product(
            f"{prefix}.self_attn.o_proj", self.mixed, has_bias, post_norm and f"{prefix}.{post_norm}.weight"
        )

    def mlp(
        self, layer: int, *, norm: str = "post_attention_layernorm", post_norm: str | None = None
    ) -> None:
        """x += down(act(gate(norm(x))) * up(norm(x))); what is added to x is normalised if asked."""
        prefix = f"model.layers.{layer}"
        self.norm(self.normed, f"{prefix}.{norm}.weight")
        self._gated(
            f"{prefix}.mlp", self.config.intermediate_size, post_norm and f"{prefix}.{post_norm}.weight"
        )

    def experts(self, layer: int, *, router_bias: bool = False) -> None:
        """x += the routed experts of norm(x), and the shared one if any; in layers without experts, mlp."""
        config, graph, weights = self.config, self.graph, self.weights
        experts = config.experts
        assert experts is not None
        if not experts.layers[layer]:
            self.mlp(layer)
            return
        if self._expert_buffers is None:
            self._expert_buffers = graph.buffer(experts.num_experts), graph.buffer(config.hidden_size)
        logits, mixed = self._expert_buffers
        prefix = f"model.layers.{layer}"
        self.norm(self.normed, f"{prefix}.post_attention_layernorm.weight")
        router = weights.matrix(f"{prefix}.mlp.gate.weight", experts.num_experts, config.hidden_size)
        bias = weights.vector(f"{prefix}.mlp.gate.bias", experts.num_experts) if router_bias else None
        graph.linear(logits, self.normed, router, bias)
        correction = f"{prefix}.mlp.gate.e_score_correction_bias"
        self.routings[layer] = routing = graph.route_topk(
            logits,
            experts.num_chosen,
            experts.scoring,
            experts.renormalise,
            experts.scale,
            weights.vector(correction, experts.num_experts) if correction in weights else None,
            experts.num_groups,
            experts.top_groups,
            experts.group_top,
        )
        bank = weights.bank(layer, experts.num_experts, config.hidden_size, experts.inner_size)
        graph.expert_ffn(mixed, self.normed, routing, bank, experts.activation, experts.limit)
        graph.add(self.x, mixed, config.residual_scale)
        if experts.shared_size:
            self._shared_expert(layer, experts.shared_size, mixed)

    def _shared_expert(self, layer: int, inner: int, mixed: Any) -> None:
        """x += the expert that all tokens use, weighted by the sigmoid of its gate where it has one."""
        graph, weights, hidden = self.graph, self.weights, self.config.hidden_size
        prefix = f"model.layers.{layer}.mlp"
        if f"{prefix}.shared_expert_gate.weight" not in weights:
            self._gated(f"{prefix}.shared_expert", inner, None)
            return
        gate_logit = graph.buffer(1)
        graph.linear(
            gate_logit, self.normed, weights.matrix(f"{prefix}.shared_expert_gate.weight", 1, hidden)
        )
        routing = graph.route_topk(gate_logit, 1, "sigmoid", False)
        shapes = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
        matrices = {
            role: weights.matrix(f"{prefix}.shared_expert.{role}_proj.weight", *shape)
            for role, shape in shapes.items()
        }
        graph.expert_ffn(mixed, self.normed, routing, ExpertBank.of_one(layer, matrices))
        graph.add(self.x, mixed)

    def _gated(self, name: str, inner: int, norm: str | None) -> None:
        """x += norm(down(act(gate(normed)) * up(normed)))."""
        config, graph = self.config, self.graph
        gate, up = self.mlp_buffers(inner)
        gate_weight = self.weights.matrix(f"{name}.gate_proj.weight", inner, config.hidden_size)
        up_weight = self.weights.matrix(f"{name}.up_proj.weight", inner, config.hidden_size)
        graph.linears([(gate, gate_weight, None), (up, up_weight, None)], self.normed)
        gated = graph.swiglu if config.activation == "silu" else graph.geglu
        gated(gate, gate, up)
        self.add_product(f"{name}.down_proj", gate, False, norm)

    def mlp_buffers(self, inner: int) -> tuple[Any, Any]:
        """Return the two buffers that all mlps of one inner size share."""
        if inner not in self._mlp_buffers:
            self._mlp_buffers[inner] = self.graph.buffer(inner), self.graph.buffer(inner)
        return self._mlp_buffers[inner]

    def head(self) -> Outputs:
        """Return the hidden states after the last norm and the logits of the rows that the step asks for."""
        config, graph = self.config, self.graph
        hidden = graph.buffer(config.hidden_size)
        self.norm(hidden, "model.norm.weight")
        selected = graph.logit_buffer(config.hidden_size)
        if config.logit_scale == 1.0:
            graph.select_logit_rows(selected, hidden)
        else:  # logits are linear in the norm's weight
            graph.select_logit_rows(selected, self.x)
            scaled = self.weights.vector("model.norm.weight", config.hidden_size) * config.logit_scale
            graph.rms_norm(selected, selected, scaled.astype(np.float32), config.rms_norm_eps)
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

    def norm(self, out: Any, name: str) -> None:
        """out = rms norm of x by the weight ``name``."""
        weight = self.weights.vector(name, self.config.hidden_size)
        self.graph.rms_norm(out, self.x, weight, self.config.rms_norm_eps)

    def add_product(self, name: str, source: Any, has_bias: bool, norm: str | None = None) -> None:
        """x += residual_scale * norm(source W^T + bias)."""
        hidden, scale = self.config.hidden_size, self.config.residual_scale
        weight = self.weights.matrix(f"{name}.weight", hidden, source.width)
        if not has_bias and norm is None and scale == 1.0:
            self.graph.linear_add(self.x, source, weight)
            return
        bias = self.weights.vector(f"{name}.bias", hidden) if has_bias else None
        self.graph.linear(self.normed, source, weight, bias)
        if norm is not None:
            norm_weight = self.weights.vector(norm, hidden)
            self.graph.rms_norm(self.normed, self.normed, norm_weight, self.config.rms_norm_eps)
        self.graph.add(self.x, self.normed, scale)
