"""Layers that keep a state of fixed size in place of keys and values (gated delta net)."""

import msgspec

from ftd.engine.hyperparameters import Values
from ftd.errors import InvalidFtw, Unsupported

# The layer_types entry of a recurrent layer
LINEAR = "linear_attention"
MAX_TAPS = 16


class RecurrentConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Which layers are recurrent, and their sizes, as in ``gated_delta_ref`` and ``causal_conv_ref``.

    taps: inputs that the convolution sees. tiled: how value heads share key heads.
    """

    layers: tuple[bool, ...]
    key_heads: int
    value_heads: int
    key_channels: int
    value_channels: int
    taps: int
    tiled: bool

    @property
    def value_size(self) -> int:
        """Channels of all value heads."""
        return self.value_heads * self.value_channels

    @property
    def conv_size(self) -> int:
        """Channels of all query, key and value heads: those that are convolved."""
        return 2 * self.key_heads * self.key_channels + self.value_size

    @property
    def state_bytes(self) -> int:
        """Bytes of one sequence's state over all layers."""
        matrices = self.value_heads * self.key_channels * self.value_channels
        return 4 * sum(self.layers) * (matrices + (self.taps - 1) * self.conv_size)


def make(values: Values, num_layers: int) -> RecurrentConfig | None:
    """Read the recurrent layers; None if all layers have attention. Raises InvalidFtw."""
    kinds = values.texts("layer_types")
    if LINEAR not in kinds:
        return None
    if len(kinds) != num_layers:
        raise InvalidFtw(f"layer_types must have one entry a layer: {len(kinds)} of {num_layers}")
    if all(kind == LINEAR for kind in kinds):
        raise Unsupported("a model without a layer of attention is not supported")
    key_heads = values.size("linear_num_key_heads", limit=1 << 12)
    value_heads = values.size("linear_num_value_heads", limit=1 << 12)
    if value_heads % key_heads:
        raise InvalidFtw(
            f"linear_num_value_heads must be a multiple of linear_num_key_heads: {value_heads}, {key_heads}"
        )
    return RecurrentConfig(
        layers=tuple(kind == LINEAR for kind in kinds),
        key_heads=key_heads,
        value_heads=value_heads,
        key_channels=values.size("linear_key_head_dim", limit=1 << 12),
        value_channels=values.size("linear_value_head_dim", limit=1 << 12),
        taps=values.size("linear_conv_kernel_dim", low=2, limit=MAX_TAPS),
        tiled=values.flag("linear_heads_tiled"),
    )
