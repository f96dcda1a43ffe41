"""rms_norm: the definition. A per-head norm is the same op on ``[T * H, C]`` rows."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels.shapes import ArrayLike, expect


def check(x: ArrayLike, weight: ArrayLike, eps: float) -> None:
    """Raise ValueError unless the arguments fit the contract of ``rms_norm``."""
    expect("x", x, "float32", ("T", "D"))
    expect("weight", weight, "float32", (x.shape[1],))
    if not eps >= 0.0:
        raise ValueError(f"eps must be at least 0, got {eps}")


def rms_norm(
    x: NDArray[np.float32], weight: NDArray[np.float32], eps: float = 1e-6, pool: object = None
) -> NDArray[np.float32]:
    """Scale each row to unit root-mean-square, then by ``weight``.

    x       [T, D] f32
    weight  [D]    f32
    returns [T, D] f32   y = x / sqrt(mean(x^2) + eps) * weight

    Bytes moved: 8*T*D + 4*D.
    Raises ValueError if x is not f32 [T, D], weight is not f32 [D] or eps < 0.
    """
    check(x, weight, eps)
    wide = x.astype(np.float64)
    square = np.square(wide).mean(axis=1, keepdims=True) if x.shape[1] else np.zeros((x.shape[0], 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        return (wide / np.sqrt(square + eps) * weight).astype(np.float32)
