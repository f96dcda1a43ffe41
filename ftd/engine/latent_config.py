"""Sizes of multi-head latent attention: a token's keys and values are one compressed row for all heads.

    latent [kv_rank] · rope key [rope_dim]        what a page keeps of each token, once
    query  [nope_dim] · rope query [rope_dim]     of each head; the first part meets the latent by kv_b

The queries may be compressed too (``q_rank``). Scores are scaled by the size of a head's query and, under
YaRN, by the square of its magnitude.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ftd.engine.hyperparameters import Values
from ftd.errors import InvalidFtw


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentConfig:
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

    @property
    def row_size(self) -> int:
        """Values that a page keeps of one token."""
        return self.kv_rank + self.rope_dim

    @property
    def query_size(self) -> int:
        """Channels of one head's query."""
        return self.nope_dim + self.rope_dim


def make(values: Values) -> LatentConfig:
    """Read the sizes under their names in Hugging Face's config.json; raise InvalidFtw if they do not fit."""
    rope_dim = values.size("qk_rope_head_dim", limit=1 << 16)
    if rope_dim % 2:
        raise InvalidFtw(f"qk_rope_head_dim must be even: {rope_dim}")
    nope_dim = values.size("qk_nope_head_dim", limit=1 << 16)
    scaling = {**values.mapping("rope_scaling"), **values.mapping("rope_parameters")}
    return LatentConfig(
        kv_rank=values.size("kv_lora_rank"),
        q_rank=0 if values.is_absent("q_lora_rank") else values.size("q_lora_rank"),
        nope_dim=nope_dim,
        rope_dim=rope_dim,
        value_dim=values.size("v_head_dim", limit=1 << 16),
        interleaved=values.flag("rope_interleave", True),
        scale=(nope_dim + rope_dim) ** -0.5 * _magnitude(scaling) ** 2,
    )


def _magnitude(scaling: Mapping[str, Any]) -> float:
    if scaling.get("rope_type", scaling.get("type", "default")) == "default":
        return 1.0
    numbers = Values(scaling)
    weight = numbers.number("mscale_all_dim", 0.0, low=0.0, high=100.0)
    factor = numbers.number("factor", 1.0, low=0.0, high=1e6)
    return 0.1 * weight * math.log(factor) + 1.0 if weight and factor > 1 else 1.0
