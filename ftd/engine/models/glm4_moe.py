"""GLM 4 with experts: sigmoid routing in groups with a bias, a shared expert, dense first layers."""

from ftd.engine.models.blocks import Blocks, Outputs


def record(blocks: Blocks) -> Outputs:
    """Record one step of the model."""
    blocks.embed()
    for layer in range(blocks.config.num_layers):
        blocks.attention(layer, qk_norm=blocks.config.qk_norm)
        blocks.experts(layer)
    return blocks.head()
