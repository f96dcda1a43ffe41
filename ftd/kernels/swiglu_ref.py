"""swiglu: the definition."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels.shapes import ArrayLike, expect


def check(gate: ArrayLike, up: ArrayLike) -> None:
    """Raise ValueError unless the arguments fit the contract of ``swiglu``."""
    expect("gate", gate, "float32", ("T", "F"))
    expect("up", up, "float32", tuple(gate.shape))


def swiglu(gate: NDArray[np.float32], up: NDArray[np.float32], pool: object = None) -> NDArray[np.float32]:
    """Return silu(gate) * up, the gated activation of a Llama mlp.

    gate    [T, F] f32
    up      [T, F] f32
    returns [T, F] f32   gate / (1 + exp(-gate)) * up

    Bytes moved: 12*T*F.
    Raises ValueError if gate is not f32 [T, F] or up is not of gate's shape.
    """
    check(gate, up)
    wide = gate.astype(np.float64)
    decay = np.exp(-np.abs(wide))
    sigmoid = np.where(wide >= 0.0, 1.0, decay) / (1.0 + decay)
    return (wide * sigmoid * up).astype(np.float32)
