"""Types of the compiled module: see layer_norm_ref.py."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels._pool import Pool

def layer_norm(
    x: NDArray[np.float32],
    weight: NDArray[np.float32],
    bias: NDArray[np.float32],
    eps: float = 1e-12,
    pool: Pool | None = None,
) -> NDArray[np.float32]:
    """Return each row shifted and scaled to mean 0 and variance 1, then by ``weight``, plus ``bias``."""
