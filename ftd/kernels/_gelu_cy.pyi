"""Types of the compiled module: see gelu_ref.py."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels._pool import Pool

def gelu(x: NDArray[np.float32], pool: Pool | None = None) -> NDArray[np.float32]:
    """Return x times the probability that a normal variable is below it."""
