"""latent_norm: the definition of what becomes of compressed keys and values before they are kept."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels.head_linear_ref import sorted_pairs
from ftd.kernels.rms_norm_ref import rms_norm
from ftd.kernels.shapes import ArrayLike, expect


def check(x: ArrayLike, weight: ArrayLike, eps: float, interleaved: bool) -> None:
    """Raise ValueError unless the arguments fit the contract of ``latent_norm``."""
    expect("x", x, "float32", ("T", "L + R"))
    expect("weight", weight, "float32", ("L",))
    tail = x.shape[1] - weight.shape[0]
    if weight.shape[0] < 1 or tail < 0 or (interleaved and tail % 2):
        raise ValueError(
            f"x must hold the latent and a tail, even where pairs are sorted, got {x.shape[1]} channels "
            f"of which {weight.shape[0]} are the latent"
        )
    if not eps >= 0.0:
        raise ValueError(f"eps must be at least 0, got {eps}")


def latent_norm(
    x: NDArray[np.float32],
    weight: NDArray[np.float32],
    eps: float = 1e-6,
    interleaved: bool = False,
    pool: object = None,
) -> NDArray[np.float32]:
    """Normalise the latent of each row as ``rms_norm`` does and pass on the key that is to be rotated.

    x            [T, L + R] f32   the latent, then the one key that all heads share
    weight       [L]        f32
    interleaved             the key's channels 0, 2, 4, … come first, then 1, 3, 5, …
    returns      [T, L + R] f32

    Bytes moved: 8*T*(L + R) + 4*L.
    Raises ValueError if a shape or dtype differs, R is odd where pairs are sorted or eps < 0.
    """
    check(x, weight, eps, interleaved)
    size = weight.shape[0]
    key = x[:, size:]
    normed = rms_norm(np.ascontiguousarray(x[:, :size]), weight, eps)
    return np.concatenate([normed, sorted_pairs(key) if interleaved else key], axis=1)
