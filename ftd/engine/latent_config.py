"""Sizes of multi-head latent attention: a token's keys and values are one compressed row for all heads.

    latent [kv_rank] · rope key [rope_dim]        what a page keeps of each token, once
    query  [nope_dim] · rope query [rope_dim]     of each head; the first part meets the latent by kv_b

The queries may be compressed too (``q_rank``). Scores are scaled by the size of a head's query and, under
YaRN, by the square of its magnitude.
"""

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from ftd.engine.hyperparameters import Values
from ftd.errors import InvalidFtw


class IndexConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Sparse attention: an indexer with heads of its own selects the ``count`` keys that a token sees.

    layers: whether a layer has an indexer; one that has none takes the selection of the layer before.
    """

    num_heads: int
    head_dim: int
    count: int
    interleaved: bool
    layers: tuple[bool, ...]


class LatentConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of one model's latent attention; ``q_rank`` 0: queries are not compressed.

    interleaved: rotated channels are stored in pairs 0, 1, 2, 3, … and not in halves.
    """

    kv_rank: int
    q_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    interleaved: bool
    scale: float
    index: IndexConfig | None = None

    @property
    def row_size(self) -> int:
        """Values that a page keeps of one token."""
        return self.kv_rank + self.rope_dim

    @property
    def kept_values(self) -> int:
        """Values that pages keep of one token over all layers of the indexer; nothing without one."""
        return sum(self.index.layers) * self.index.head_dim if self.index else 0

    @property
    def query_size(self) -> int:
        """Channels of one head's query."""
        return self.nope_dim + self.rope_dim


def make(values: Values, num_layers: int) -> LatentConfig:
    """Read the sizes under their names in Hugging Face's config.json; raise InvalidFtw if they do not fit."""
    rope_dim = values.size("qk_rope_head_dim", limit=1 << 16)
    if rope_dim % 2:
        raise InvalidFtw(f"qk_rope_head_dim must be even: {rope_dim}")
    nope_dim = values.size("qk_nope_head_dim", limit=1 << 16)
    index = None if values.is_absent("index_topk") else _index(values, num_layers)
    if index is not None and (index.head_dim < rope_dim or values.is_absent("q_lora_rank")):
        raise InvalidFtw(
            f"index_head_dim must be at least {rope_dim}, and queries compressed: {index.head_dim}"
        )
    scaling = {**values.mapping("rope_scaling"), **values.mapping("rope_parameters")}
    return LatentConfig(
        kv_rank=values.size("kv_lora_rank"),
        q_rank=0 if values.is_absent("q_lora_rank") else values.size("q_lora_rank"),
        nope_dim=nope_dim,
        rope_dim=rope_dim,
        value_dim=values.size("v_head_dim", limit=1 << 16),
        interleaved=values.flag("rope_interleave", True),
        index=index,
        scale=(nope_dim + rope_dim) ** -0.5 * _magnitude(scaling) ** 2,
    )


def _index(values: Values, num_layers: int) -> IndexConfig:
    kinds = values.texts("indexer_types") or ["full"] * num_layers
    if len(kinds) != num_layers or set(kinds) - {"full", "shared"} or kinds[0] != "full":
        raise InvalidFtw(f"indexer_types must be full or shared for each of {num_layers} layers, first full")
    return IndexConfig(
        num_heads=values.size("index_n_heads", limit=1 << 12),
        head_dim=values.size("index_head_dim", limit=1 << 16),
        count=values.size("index_topk"),
        interleaved=values.flag("indexer_rope_interleave"),
        layers=tuple(kind == "full" for kind in kinds),
    )


def _magnitude(scaling: Mapping[str, Any]) -> float:
    if scaling.get("rope_type", scaling.get("type", "default")) == "default":
        return 1.0
    numbers = Values(scaling)
    weight = numbers.number("mscale_all_dim", 0.0, low=0.0, high=100.0)
    factor = numbers.number("factor", 1.0, low=0.0, high=1e6)
    return 0.1 * weight * math.log(factor) + 1.0 if weight and factor > 1 else 1.0
