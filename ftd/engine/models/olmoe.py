"""OLMoE: Llama with routed experts and norms over all heads of queries and of keys at once."""

from ftd.engine.models.blocks import Blocks, Outputs


def record(blocks: Blocks) -> Outputs:
    """Record one step of the model."""
    blocks.embed()
    for layer in range(blocks.config.num_layers):
        blocks.attention(layer, whole_norm=True)
        blocks.experts(layer)
    return blocks.head()
