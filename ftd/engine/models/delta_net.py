"""The gated delta net (Qwen3-Next, Qwen3.5): a layer with a state of fixed size in place of attention.

normed ─▶ qkv ─▶ convolution, silu ─▶ delta rule ─▶ norm of each head ─▶ times silu(z) ─▶ out ─▶ x +
       ─▶ z, b, a                       ▲ a forgets, b corrects
"""

from typing import Any

from ftd.engine.models.blocks import Blocks


class DeltaNet:
    """Records recurrent layers into the graph of ``blocks``; all of them share one set of buffers."""

    def __init__(self, blocks: Blocks) -> None:
        config = blocks.config.recurrent
        assert config is not None
        assert blocks.state_pool is not None
        self.config = config
        self.blocks = blocks
        self.state_pool = blocks.state_pool
        graph = blocks.graph
        self.qkv, self.mixed_qkv = graph.buffer(config.conv_size), graph.buffer(config.conv_size)
        self.z, self.mixed = graph.buffer(config.value_size), graph.buffer(config.value_size)
        self.a, self.b = graph.buffer(config.value_heads), graph.buffer(config.value_heads)

    def layer(self, layer: int) -> None:
        """x += out_proj(norm(delta rule(normed)) * silu(z))."""
        config, blocks = self.config, self.blocks
        graph, weights = blocks.graph, blocks.weights
        prefix = f"model.layers.{layer}.linear_attn"
        blocks.norm(blocks.normed, f"model.layers.{layer}.input_layernorm.weight")
        products: list[tuple[Any, Any, None]] = [
            (
                out,
                weights.matrix(f"{prefix}.in_proj_{part}.weight", out.width, blocks.config.hidden_size),
                None,
            )
            for part, out in (("qkv", self.qkv), ("z", self.z), ("b", self.b), ("a", self.a))
        ]
        # The rates in f32 also on the fast path: their errors stay in the state, and they are few weights.
        graph.linears(products, blocks.normed, num_exact=2)
        kernel = weights.floats(f"{prefix}.conv1d.weight", config.conv_size, config.taps)
        graph.causal_conv(self.mixed_qkv, self.qkv, kernel, self.state_pool.conv[layer])
        graph.gated_delta(
            self.mixed,
            self.mixed_qkv,
            self.a,
            self.b,
            weights.vector(f"{prefix}.A", config.value_heads),
            weights.vector(f"{prefix}.dt_bias", config.value_heads),
            self.state_pool.delta[layer],
            config.key_heads,
            config.tiled,
        )
        norm = weights.vector(f"{prefix}.norm.weight", config.value_channels)
        graph.head_rms_norm(self.mixed, config.value_heads, norm, blocks.config.rms_norm_eps)
        graph.swiglu(self.z, self.z, self.mixed)
        out_proj = weights.matrix(f"{prefix}.out_proj.weight", blocks.config.hidden_size, config.value_size)
        graph.linear_add(blocks.x, self.z, out_proj)
