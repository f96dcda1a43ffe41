"""gelu: the definition, with the error function (not its tanh approximation, which is geglu's)."""

import math

import numpy as np
from numpy.typing import NDArray

from ftd.kernels.shapes import ArrayLike, expect

_erf = np.vectorize(math.erf, otypes=[np.float64])


def check(x: ArrayLike) -> None:
    """Raise ValueError unless the argument fits the contract of ``gelu``."""
    expect("x", x, "float32", ("T", "F"))


def gelu(x: NDArray[np.float32], pool: object = None) -> NDArray[np.float32]:
    """Return x times the probability that a normal variable is below x.

    x       [T, F] f32
    returns [T, F] f32   y = x * (1 + erf(x / sqrt(2))) / 2

    Bytes moved: 8*T*F.
    Raises ValueError if x is not f32 [T, F].
    """
    check(x)
    wide = x.astype(np.float64)
    below = 0.5 * (1.0 + _erf(wide / math.sqrt(2.0)))
    with np.errstate(invalid="ignore"):
        result: NDArray[np.float32] = np.where(wide == -np.inf, 0.0, wide * below).astype(np.float32)
    return result
