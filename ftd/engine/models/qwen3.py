"""Qwen3 dense: Llama with an RMS norm on each query and key head before the rotary embedding."""

from ftd.engine.models.blocks import Blocks, Outputs


def record(blocks: Blocks) -> Outputs:
    """Record one step of the model."""
    blocks.embed()
    for layer in range(blocks.config.num_layers):
        blocks.attention(layer, qk_norm=True)
        blocks.mlp(layer)
    return blocks.head()
