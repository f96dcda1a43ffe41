"""Types of the compiled module: see position_embedding_ref.py."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels._pool import Pool

def position_embedding(
    x: NDArray[np.float32],
    positions: NDArray[np.int32],
    table: NDArray[np.float32],
    pool: Pool | None = None,
) -> NDArray[np.float32]:
    """Return x plus the row of table that each position names."""
