"""gpt-oss: biases everywhere, attention with sinks and windows in every other layer, clamped experts."""

from ftd.engine.models.blocks import Blocks, Outputs


def record(blocks: Blocks) -> Outputs:
    """Record one step of the model."""
    blocks.embed()
    for layer in range(blocks.config.num_layers):
        blocks.attention(layer, qkv_bias=True, sinks=True)
        blocks.experts(layer, router_bias=True)
    return blocks.head()
