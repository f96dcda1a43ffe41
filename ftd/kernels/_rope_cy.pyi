"""Types of the compiled module: see rope_ref.py."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels._pool import Pool

def rope(
    x: NDArray[np.float32],
    positions: NDArray[np.int32],
    inv_freq: NDArray[np.float32],
    scale: float = 1.0,
    pool: Pool | None = None,
) -> NDArray[np.float32]:
    """Return ``x`` with its channel pairs rotated by position."""
