"""Qwen3-Next and Qwen3.5 with experts: gated delta nets, every few layers a gated attention, experts."""

from ftd.engine.models.blocks import Blocks, Outputs
from ftd.engine.models.qwen3_5 import mixer


def record(blocks: Blocks) -> Outputs:
    """Record one step of the model."""
    blocks.embed()
    mix = mixer(blocks)
    for layer in range(blocks.config.num_layers):
        mix(layer)
        blocks.experts(layer)
    return blocks.head()
