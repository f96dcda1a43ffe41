"""Encoders of the BERT kind: attention in both directions, a norm after each residual, hidden states only.

BERT has learned positions, biases and a gelu mlp; Nomic BERT rotates, has no biases and a gated mlp. Which
one a model is shows in its tensors. It has no output head: the hidden states are what it is for.
"""

from typing import Any

import numpy as np

from ftd.engine.graphs import Floats
from ftd.engine.models.blocks import Blocks, Outputs
from ftd.errors import Unsupported
from ftd.kernels import dispatch
from ftd.kernels.quant import QuantMatrix

POSITIONS, TYPES = "model.embed_positions.weight", "model.embed_types.weight"


def record(blocks: Blocks) -> Outputs:
    """Record one step of the model; its sequences must be whole."""
    blocks.embed()
    table = _table(blocks)
    if table is not None:
        blocks.graph.position_embedding(blocks.x, table)
    _norm(blocks, "model.embed_norm")
    for layer in range(blocks.config.num_layers):
        _attention(blocks, f"model.layers.{layer}")
        _mlp(blocks, f"model.layers.{layer}")
    return Outputs(blocks.x, None)


def _table(blocks: Blocks) -> Floats | None:
    """Return what each position adds to a token [S, D]: its own row, and that of the first token type.

    Rows of zeros follow the last position to the end of its page, where no token ever is.
    """
    config, weights = blocks.config, blocks.weights
    if POSITIONS not in weights and TYPES not in weights:
        return None
    page_size = blocks.kv_pool.page_size
    rows = -(-config.max_context_tokens // page_size) * page_size
    table = np.zeros((rows, config.hidden_size), np.float32)
    if POSITIONS in weights:
        positions = weights.matrix(POSITIONS, config.max_context_tokens, config.hidden_size)
        table[: config.max_context_tokens] = dispatch.get("dequantize")(positions)
    if TYPES in weights:
        types = weights.matrix(TYPES, config.num_token_types, config.hidden_size)
        table += dispatch.get("dequantize")(types)[0]
    return table


def _attention(blocks: Blocks, prefix: str) -> None:
    """x = norm(x + o_proj(attention(x)))."""
    config, graph, weights = blocks.config, blocks.graph, blocks.weights
    outs = {"q": blocks.q, "k": blocks.k, "v": blocks.v}
    fused = f"{prefix}.self_attn.qkv_proj.weight"
    products: list[tuple[Any, QuantMatrix, Floats | None]] = []
    if fused in weights:
        whole = weights.matrix(fused, 3 * blocks.q_size, config.hidden_size)
        products = [(out, _third(whole, number), None) for number, out in enumerate(outs.values())]
    else:
        for part, out in outs.items():
            name = f"{prefix}.self_attn.{part}_proj"
            weight = weights.matrix(f"{name}.weight", out.width, config.hidden_size)
            products.append((out, weight, _bias(blocks, name, out.width)))
    graph.linears(products, blocks.x, num_exact=2)
    if POSITIONS not in weights:
        inv_freq, scale = blocks.rope
        for part in ("q", "k"):
            graph.rope(outs[part], config.num_heads, config.head_dim, inv_freq, scale)
    layer = int(prefix.rsplit(".", 1)[1])
    k_pages, v_pages = blocks.kv_pool.k[layer], blocks.kv_pool.v[layer]
    graph.kv_store(blocks.k, blocks.v, k_pages, v_pages)
    graph.attention(
        blocks.mixed, blocks.q, k_pages, v_pages, config.num_heads, config.attention_scale, causal=False
    )
    _add_product(blocks, f"{prefix}.self_attn.o_proj", blocks.mixed)
    _norm(blocks, f"{prefix}.post_attention_layernorm")


def _mlp(blocks: Blocks, prefix: str) -> None:
    """x = norm(x + down(act(up(x)))), or with a gate norm(x + down(act(gate(x)) * up(x)))."""
    config, graph, weights = blocks.config, blocks.graph, blocks.weights
    inner = config.intermediate_size
    up, gate = blocks.mlp_buffers(inner)
    name = f"{prefix}.mlp.up_proj"
    up_product = (up, weights.matrix(f"{name}.weight", inner, config.hidden_size), _bias(blocks, name, inner))
    name = f"{prefix}.mlp.gate_proj"
    if f"{name}.weight" in weights:
        gate_weight = weights.matrix(f"{name}.weight", inner, config.hidden_size)
        graph.linears([up_product, (gate, gate_weight, _bias(blocks, name, inner))], blocks.x)
        graph.swiglu(up, gate, up)
    else:
        graph.linears([up_product], blocks.x)
        graph.gelu(up, up)
    _add_product(blocks, f"{prefix}.mlp.down_proj", up)
    _norm(blocks, f"{prefix}.post_feedforward_layernorm")


def _norm(blocks: Blocks, name: str) -> None:
    hidden = blocks.config.hidden_size
    weight, bias = (blocks.weights.vector(f"{name}.{part}", hidden) for part in ("weight", "bias"))
    blocks.graph.layer_norm(blocks.x, blocks.x, weight, bias, blocks.config.rms_norm_eps)


def _add_product(blocks: Blocks, name: str, source: Any) -> None:
    hidden = blocks.config.hidden_size
    weight = blocks.weights.matrix(f"{name}.weight", hidden, source.width)
    blocks.graph.linear(blocks.normed, source, weight, _bias(blocks, name, hidden))
    blocks.graph.add(blocks.x, blocks.normed)


def _bias(blocks: Blocks, name: str, size: int) -> Floats | None:
    return blocks.weights.vector(f"{name}.bias", size) if f"{name}.bias" in blocks.weights else None


def _third(whole: QuantMatrix, number: int) -> QuantMatrix:
    """Return a third of the rows of ``whole`` [3N, K]: views into its planes."""
    rows, columns = whole.shape[0] // 3, whole.shape[1]
    if any(len(plane) != whole.shape[0] for plane in whole.planes):
        raise Unsupported(f"q, k and v in one tensor of format {whole.format} are not supported")
    planes = tuple(plane[number * rows : (number + 1) * rows] for plane in whole.planes)
    return QuantMatrix(whole.format, (rows, columns), planes)
