"""Qwen2 with experts: biases on q, k and v; routed experts and a shared one behind a gate."""

from ftd.engine.models.blocks import Blocks, Outputs


def record(blocks: Blocks) -> Outputs:
    """Record one step of the model."""
    blocks.embed()
    for layer in range(blocks.config.num_layers):
        blocks.attention(layer, qkv_bias=True)
        blocks.experts(layer)
    return blocks.head()
