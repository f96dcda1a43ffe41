"""Types of the compiled module: see latent_store_ref.py."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels._pool import Pool

def latent_store(
    x: NDArray[np.float32],
    pages: NDArray[np.floating],
    kv_index: NDArray[np.int32],
    pool: Pool | None = None,
) -> None:
    """Write each token's latent and key to its place in the pages."""
