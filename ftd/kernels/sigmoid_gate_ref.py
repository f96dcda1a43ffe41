"""sigmoid_gate: the definition."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels.shapes import ArrayLike, expect


def check(x: ArrayLike, gate: ArrayLike) -> None:
    """Raise ValueError unless the arguments fit the contract of ``sigmoid_gate``."""
    expect("x", x, "float32", ("T", "F"))
    expect("gate", gate, "float32", tuple(x.shape))


def sigmoid_gate(
    x: NDArray[np.float32], gate: NDArray[np.float32], pool: object = None
) -> NDArray[np.float32]:
    """Return x * sigmoid(gate), the gate behind an attention.

    x       [T, F] f32
    gate    [T, F] f32
    returns [T, F] f32   x / (1 + exp(-gate))

    Bytes moved: 12*T*F.
    Raises ValueError if x is not f32 [T, F] or gate is not of x's shape.
    """
    check(x, gate)
    wide = gate.astype(np.float64)
    power = np.exp(-np.abs(wide))
    return (x * (np.where(wide >= 0.0, 1.0, power) / (1.0 + power))).astype(np.float32)
