"""Types of the compiled module: see geglu_ref.py."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels._pool import Pool

def geglu(
    gate: NDArray[np.float32], up: NDArray[np.float32], pool: Pool | None = None
) -> NDArray[np.float32]:
    """Return gelu(gate) * up."""
