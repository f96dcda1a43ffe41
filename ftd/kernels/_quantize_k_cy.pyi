"""Types of the compiled module: see quantize_k_ref.py."""

import numpy as np
from numpy.typing import NDArray

def quantize_k(blocks: NDArray[np.float32], format: str) -> tuple[NDArray[np.generic], ...]:
    """Return the planes of blocks of 256 values."""
