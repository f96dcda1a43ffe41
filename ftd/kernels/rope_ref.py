"""rope: the definition of rotary position embedding, half-split as Hugging Face's ``rotate_half``."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels.shapes import ArrayLike, expect


def check(x: ArrayLike, positions: ArrayLike, inv_freq: ArrayLike, scale: float) -> None:
    """Raise ValueError unless the arguments fit the contract of ``rope``."""
    expect("x", x, "float32", ("T", "H", "C"))
    expect("positions", positions, "int32", (x.shape[0],))
    expect("inv_freq", inv_freq, "float32", ("C_rot/2",))
    if 2 * inv_freq.shape[0] > x.shape[2]:
        raise ValueError(f"inv_freq rotates {2 * inv_freq.shape[0]} channels, a head has {x.shape[2]}")
    if not np.isfinite(scale):
        raise ValueError(f"scale must be finite, got {scale}")


def rope(
    x: NDArray[np.float32],
    positions: NDArray[np.int32],
    inv_freq: NDArray[np.float32],
    scale: float = 1.0,
    pool: object = None,
) -> NDArray[np.float32]:
    """Rotate channel pairs (j, j + R) of each head by ``positions[t] * inv_freq[j]``, R = len(inv_freq).

    x         [T, H, C] f32
    positions [T]       i32
    inv_freq  [R]       f32   radians a position, 2*R <= C
    scale               factor on cosine and sine (YaRN's attention factor)
    returns   [T, H, C] f32   channels from 2*R on are copied

    The angle is a float64 product, so position 100,000 is as accurate as position 1.
    Bytes moved: 8*T*H*C.
    Raises ValueError if a shape or dtype differs, 2*R > C or scale is not finite.
    """
    check(x, positions, inv_freq, scale)
    half = inv_freq.shape[0]
    angle = positions.astype(np.float64)[:, None] * inv_freq.astype(np.float64)
    cos = (np.cos(angle) * scale)[:, None, :]
    sin = (np.sin(angle) * scale)[:, None, :]
    low, high = x[:, :, :half].astype(np.float64), x[:, :, half : 2 * half].astype(np.float64)
    out = x.copy()
    out[:, :, :half] = low * cos - high * sin
    out[:, :, half : 2 * half] = high * cos + low * sin
    return out
