"""Types of the compiled module: see add_ref.py."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels._pool import Pool

def add(
    x: NDArray[np.float32], y: NDArray[np.float32], scale: float = 1.0, pool: Pool | None = None
) -> NDArray[np.float32]:
    """Return x + scale * y."""
