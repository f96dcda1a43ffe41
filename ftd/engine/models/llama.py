"""Llama and its kin without changes (SmolLM2, Mistral): pre-norm attention with rotary embedding, SwiGLU."""

from ftd.engine.models.blocks import Blocks, Outputs


def record(blocks: Blocks) -> Outputs:
    """Record one step of the model."""
    blocks.embed()
    for layer in range(blocks.config.num_layers):
        blocks.attention(layer)
        blocks.mlp(layer)
    return blocks.head()
