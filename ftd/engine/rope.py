"""Rotary frequencies of a model: the base frequencies and the scaling rules of long-context models.

Every rule turns ``theta`` into ``inv_freq`` [dim/2] f32, the angle of one position in radians for each pair
of channels, and one factor for cosine and sine. The formulas are those that the models were trained with
(linear interpolation; Llama 3's smoothed bands; YaRN).
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ftd.engine.model_config import RopeConfig
from ftd.errors import InvalidFtw, Unsupported


def frequencies(rope: RopeConfig, max_context_tokens: int) -> tuple[NDArray[np.float32], float]:
    """Return ``(inv_freq [dim/2] f32, scale)`` for ``rope``.

    Raises Unsupported for an unknown rule and InvalidFtw when its parameters are missing or out of range.
    """
    exponents = np.arange(0, rope.dim, 2, dtype=np.float64) / rope.dim
    base = 1.0 / rope.theta**exponents
    scale = 1.0
    match rope.kind:
        case "default" | "none" | "dynamic":  # which differs behind the window that the model has
            scaled = base
        case "linear":
            scaled = base / _number(rope.parameters, "factor")
        case "llama3":
            scaled = _llama3(base, rope.parameters)
        case "factors":
            scaled = base / _factors(rope)
        case "yarn":
            scaled, scale = _yarn(base, rope, max_context_tokens)
        case _:
            raise Unsupported(f"rope scaling is not supported: {rope.kind}")
    return np.ascontiguousarray(scaled, dtype=np.float32), scale


def _number(parameters: Mapping[str, Any], name: str, default: float | None = None) -> float:
    value = parameters.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        raise InvalidFtw(f"rope_scaling: {name} must be a positive number: {value!r}")
    return float(value)


def _factors(rope: RopeConfig) -> NDArray[np.float64]:
    """Return the divisor of each frequency, as GGUF files carry them."""
    factors = rope.parameters.get("factors")
    if not isinstance(factors, list) or len(factors) != rope.dim // 2:
        raise InvalidFtw(f"rope_scaling: factors must be a list of {rope.dim // 2} numbers")
    return np.array([_number({"factors": factor}, "factors") for factor in factors])


def _llama3(base: NDArray[np.float64], parameters: Mapping[str, Any]) -> NDArray[np.float64]:
    """Keep short wavelengths, divide long ones by ``factor``, blend between the two bounds."""
    factor = _number(parameters, "factor")
    low, high = _number(parameters, "low_freq_factor"), _number(parameters, "high_freq_factor")
    trained = _number(parameters, "original_max_position_embeddings")
    if high <= low:
        raise InvalidFtw(f"rope_scaling: high_freq_factor must exceed low_freq_factor: {high}, {low}")
    turns = trained * base / (2 * math.pi)
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return base * keep + base / factor * (1.0 - keep)


def _yarn(
    base: NDArray[np.float64], rope: RopeConfig, max_context_tokens: int
) -> tuple[NDArray[np.float64], float]:
    """Blend interpolated and original frequencies by how often a pair turns within the trained context."""
    parameters = rope.parameters
    trained = _number(parameters, "original_max_position_embeddings", float(max_context_tokens))
    factor = _number(parameters, "factor")

    def pair_of(turns: float) -> float:
        return rope.dim * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low = pair_of(_number(parameters, "beta_fast", 32.0))
    high = pair_of(_number(parameters, "beta_slow", 1.0))
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    ramp = np.clip((np.arange(rope.dim // 2) - low) / max(high - low, 0.001), 0.0, 1.0)
    return base / factor * ramp + base * (1.0 - ramp), _yarn_scale(parameters, factor)


def _yarn_scale(parameters: Mapping[str, Any], factor: float) -> float:
    if parameters.get("attention_factor") is not None:
        return _number(parameters, "attention_factor")

    def magnitude(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    mscale, mscale_all = parameters.get("mscale"), parameters.get("mscale_all_dim")
    if mscale and mscale_all:
        return magnitude(_number(parameters, "mscale")) / magnitude(_number(parameters, "mscale_all_dim"))
    return magnitude(1.0)
