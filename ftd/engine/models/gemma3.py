"""Gemma 3 text: scaled embeddings, norms around attention and mlp, windows with a rotation of their own."""

from ftd.engine.models.blocks import Blocks, Outputs


def record(blocks: Blocks) -> Outputs:
    """Record one step of the model; its norm weights come with the one that Gemma adds."""
    blocks.embed(scale=blocks.config.hidden_size**0.5)
    for layer in range(blocks.config.num_layers):
        blocks.attention(layer, qk_norm=True, post_norm="post_attention_layernorm")
        blocks.mlp(layer, norm="pre_feedforward_layernorm", post_norm="post_feedforward_layernorm")
    return blocks.head()
