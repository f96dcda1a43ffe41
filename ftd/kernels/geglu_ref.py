"""geglu: the definition."""

import math

import numpy as np
from numpy.typing import NDArray

from ftd.kernels.shapes import ArrayLike, expect


def check(gate: ArrayLike, up: ArrayLike) -> None:
    """Raise ValueError unless the arguments fit the contract of ``geglu``."""
    expect("gate", gate, "float32", ("T", "F"))
    expect("up", up, "float32", tuple(gate.shape))


def geglu(gate: NDArray[np.float32], up: NDArray[np.float32], pool: object = None) -> NDArray[np.float32]:
    """Return gelu(gate) * up with the tanh form of gelu, the gated activation of a Gemma mlp.

    gate    [T, F] f32
    up      [T, F] f32
    returns [T, F] f32   gate / (1 + exp(-2u)) * up,  u = sqrt(2/pi) * (gate + 0.044715 * gate^3)

    Bytes moved: 12*T*F.
    Raises ValueError if gate is not f32 [T, F] or up is not of gate's shape.
    """
    check(gate, up)
    wide = gate.astype(np.float64)
    twice = math.sqrt(8.0 / math.pi) * (wide + 0.044715 * wide * wide * wide)
    decay = np.exp(-np.abs(twice))
    sigmoid = np.where(twice >= 0.0, 1.0, decay) / (1.0 + decay)
    return (wide * sigmoid * up).astype(np.float32)
