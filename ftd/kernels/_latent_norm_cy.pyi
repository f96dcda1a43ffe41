"""Types of the compiled module: see latent_norm_ref.py."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels._pool import Pool

def latent_norm(
    x: NDArray[np.float32],
    weight: NDArray[np.float32],
    eps: float = 1e-6,
    interleaved: bool = False,
    pool: Pool | None = None,
) -> NDArray[np.float32]:
    """Return each row's latent normalised, and its key."""
