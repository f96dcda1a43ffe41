"""layer_norm: the definition."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels.shapes import ArrayLike, expect


def check(x: ArrayLike, weight: ArrayLike, bias: ArrayLike, eps: float) -> None:
    """Raise ValueError unless the arguments fit the contract of ``layer_norm``."""
    expect("x", x, "float32", ("T", "D"))
    expect("weight", weight, "float32", (x.shape[1],))
    expect("bias", bias, "float32", (x.shape[1],))
    if not eps >= 0.0:
        raise ValueError(f"eps must be at least 0, got {eps}")


def layer_norm(
    x: NDArray[np.float32],
    weight: NDArray[np.float32],
    bias: NDArray[np.float32],
    eps: float = 1e-12,
    pool: object = None,
) -> NDArray[np.float32]:
    """Shift each row to mean 0, scale it to variance 1, then by ``weight``, and add ``bias``.

    x       [T, D] f32
    weight  [D]    f32
    bias    [D]    f32
    returns [T, D] f32   y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, var of the whole row

    Bytes moved: 8*T*D + 8*D.
    Raises ValueError if x is not f32 [T, D], weight or bias is not f32 [D] or eps < 0.
    """
    check(x, weight, bias, eps)
    if not x.size:
        return np.zeros_like(x)
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axis=1, keepdims=True)
    variance = np.square(centred).mean(axis=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        normed: NDArray[np.float32] = (centred / np.sqrt(variance + eps) * weight + bias).astype(np.float32)
    return normed
