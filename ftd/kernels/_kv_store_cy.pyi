"""Types of the compiled module: see kv_store_ref.py."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels._pool import Pool

def kv_store(
    k: NDArray[np.float32],
    v: NDArray[np.float32],
    k_pages: NDArray[np.floating],
    v_pages: NDArray[np.floating],
    kv_index: NDArray[np.int32],
    pool: Pool | None = None,
) -> None:
    """Write each token's key and value to its place in the pages."""
