"""Types of the compiled module: see index_select_ref.py."""

import numpy as np
from numpy.typing import NDArray

from ftd.kernels._pool import Pool

def index_select(
    q: NDArray[np.float32],
    weights: NDArray[np.float32],
    pages: NDArray[np.floating],
    page_table: NDArray[np.int32],
    q_start: NDArray[np.int32],
    kv_len: NDArray[np.int32],
    positions: NDArray[np.int32],
    count: int,
    pool: Pool | None = None,
) -> NDArray[np.uint64]:
    """Return the selected keys of each token as bits."""
