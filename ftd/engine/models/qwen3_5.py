"""Qwen3.5 dense: gated delta nets, every few layers an attention whose output passes a gate; mlps."""

from collections.abc import Callable

from ftd.engine.models.blocks import Blocks, Outputs
from ftd.engine.models.delta_net import DeltaNet


def record(blocks: Blocks) -> Outputs:
    """Record one step of the model."""
    blocks.embed()
    mix = mixer(blocks)
    for layer in range(blocks.config.num_layers):
        mix(layer)
        blocks.mlp(layer)
    return blocks.head()


def mixer(blocks: Blocks) -> Callable[[int], None]:
    """Return what records the first half of a layer, recurrent or attention as the config says."""
    recurrent = blocks.config.recurrent
    delta_net = None if recurrent is None else DeltaNet(blocks)

    def mix(layer: int) -> None:
        if delta_net is not None and delta_net.config.layers[layer]:
            delta_net.layer(layer)
        else:
            blocks.attention(layer, qk_norm=True, gated=True)

    return mix
