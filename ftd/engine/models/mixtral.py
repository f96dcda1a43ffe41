"""Mixtral and Granite's MoE: Llama with routed experts; Granite's multipliers come with the config."""

from ftd.engine.models.blocks import Blocks, Outputs


def record(blocks: Blocks) -> Outputs:
    """Record one step of the model."""
    blocks.embed()
    for layer in range(blocks.config.num_layers):
        blocks.attention(layer)
        blocks.experts(layer)
    return blocks.head()
