"""add: the definition."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels.shapes import ArrayLike, expect


def check(x: ArrayLike, y: ArrayLike) -> None:
    """Raise ValueError unless the arguments fit the contract of ``add``."""
    expect("x", x, "float32", ("T", "D"))
    expect("y", y, "float32", tuple(x.shape))


def add(
    x: NDArray[np.float32], y: NDArray[np.float32], scale: float = 1.0, pool: object = None
) -> NDArray[np.float32]:
    """Return the sum of two activations, the second one scaled.

    x       [T, D] f32
    y       [T, D] f32
    returns [T, D] f32   x + scale * y, rounded once

    Bytes moved: 12*T*D.
    Raises ValueError if x is not f32 [T, D] or y is not of x's shape.
    """
    check(x, y)
    return (x + np.float64(np.float32(scale)) * y).astype(np.float32)
