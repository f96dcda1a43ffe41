"""Qwen2 and Qwen2.5: Llama with biases on the query, key and value projections."""

from ftd.engine.models.blocks import Blocks, Outputs


def record(blocks: Blocks) -> Outputs:
    """Record one step of the model."""
    blocks.embed()
    for layer in range(blocks.config.num_layers):
        blocks.attention(layer, qkv_bias=True)
        blocks.mlp(layer)
    return blocks.head()
