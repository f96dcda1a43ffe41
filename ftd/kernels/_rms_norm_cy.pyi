"""Types of the compiled module: see rms_norm_ref.py."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels._pool import Pool

def rms_norm(
    x: NDArray[np.float32], weight: NDArray[np.float32], eps: float = 1e-6, pool: Pool | None = None
) -> NDArray[np.float32]:
    """Return each row scaled to unit root-mean-square, then by ``weight``."""
