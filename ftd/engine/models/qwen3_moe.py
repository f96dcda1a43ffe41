"""Qwen3 with experts: Qwen3's attention, routed experts in place of the mlp."""

from ftd.engine.models.blocks import Blocks, Outputs


def record(blocks: Blocks) -> Outputs:
    """Record one step of the model."""
    blocks.embed()
    for layer in range(blocks.config.num_layers):
        blocks.attention(layer, qk_norm=True)
        blocks.experts(layer)
    return blocks.head()
